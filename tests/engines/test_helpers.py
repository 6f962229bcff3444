"""Processes beside the local engine: the same numbers, and clear ends."""

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from vagen.config.schema import WarmStartConfig
from vagen.engines.local import engine as local
from vagen.engines.local.engine import LocalEngine
from vagen.engines.local.helpers import HelperLost, Helpers, possible_helpers
from vagen.engines.local.supervised import learn_from_experts
from vagen.models.loading import load_model
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.episodes import training_specs
from vagen.rollout.types import TokenRow
from vagen.stages.build import load_levels

pytestmark = pytest.mark.skipif(possible_helpers(2) == 0, reason="no helpers on this machine")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Batches as small as the tests' are cut into parts; one thread, as where helpers are used."""
    monkeypatch.setattr(local, "LEAST_TOKENS", 128)
    monkeypatch.setattr(local, "LEAST_EPISODES", 2)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def iteration(make_engine, run, batch_dir: Path, helpers: int, model: str) -> dict[str, Any]:
    """What an engine says and becomes."""
    batch = TrajectoryBatch.load(batch_dir)
    engine: LocalEngine = make_engine(model=model, helpers=helpers)
    played, images = engine.play(
        training_specs(engine.config, load_levels(run), 0),
        sampling=engine.config.actor_rollout_ref.rollout,
        split="train",
    )
    rows = [row for trajectory in batch.trajectories for row in trajectory.rows]
    found = {
        "ids": [row.input_ids for trajectory in played for row in trajectory.rows],
        "rollout": [row.rollout_logprobs for trajectory in played for row in trajectory.rows],
        "old": engine.logprobs(rows, batch.images),
        "reference": engine.logprobs(rows, batch.images, reference=True),
        "values": engine.values(rows, batch.images)[0],
    }
    metrics = engine.update(rows, batch.images, seed=1)
    found["metrics"] = [np.array([metrics[name] for name in sorted(metrics)])]
    assert engine.critic is not None
    learners = [*engine.actor.model.parameters(), *engine.critic.parameters()]
    found["weights"] = [parameter.detach().numpy().copy() for parameter in learners]
    found["images"] = sorted(images)
    engine.close()
    return found


def test_rows_with_one_prompt_are_two_units_however_little_is_left_of_them(make_engine):
    said = np.arange(62) >= 60
    rows = [
        TokenRow(
            trajectory_id="",
            row_index=0,
            input_ids=np.where(said, i, 100).astype(np.int32),
            loss_mask=said,
            turn_index=np.where(said, 0, -1).astype(np.int16),
            rollout_logprobs=np.zeros(62, np.float32),
            images=[],
        )
        for i in range(5)
    ]
    engine: LocalEngine = make_engine(model="tiny:text")
    groups = engine._groups(rows, engine.action_mask)
    packed = [engine._pack([rows[i] for i in group], {}, engine.action_mask) for group in groups]
    assert [part.inputs["input_ids"].shape[1] for part in packed] == [60 + 2, 60 + 4 * 2]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny:vl", "tiny:text"])
def test_an_iteration_is_the_same_whoever_computed_it(make_engine, warm_runs, batch_dirs, model):
    alone = iteration(make_engine, warm_runs[model], batch_dirs[model], 0, model)
    for helpers in (1, 2):
        found = iteration(make_engine, warm_runs[model], batch_dirs[model], helpers, model)
        assert found.pop("images") == alone["images"]
        for name, arrays in found.items():
            for ours, theirs in zip(arrays, alone[name], strict=True):
                np.testing.assert_array_equal(ours, theirs, err_msg=name)


@pytest.mark.parametrize("muon", [True, False])
def test_a_warm_start_is_the_same_whoever_computed_it(muon, warm_runs, batch_dirs):
    batch = TrajectoryBatch.load(batch_dirs["tiny:text"])
    rows = [row for trajectory in batch.trajectories for row in trajectory.rows]
    ends = []
    for helpers in (0, 1):
        model = load_model(warm_runs["tiny:text"].warm_start / "policy")
        config = WarmStartConfig(steps=3, lr=1e-3)
        losses = learn_from_experts(model, lambda _: (rows, {}), config, muon=muon, helpers=helpers)
        ends.append((losses, [p.detach().numpy() for p in model.model.parameters()]))
    assert ends[0][0] == ends[1][0]
    for ours, theirs in zip(ends[0][1], ends[1][1], strict=True):
        np.testing.assert_array_equal(ours, theirs)


class Work:
    """Units that tell who did them, or fail."""

    def __init__(self):
        self.network = nn.Linear(2, 1)
        self.unused = nn.Linear(2, 1)

    def who(self, number, say):
        say(number)
        return number, os.getpid()

    def fail(self, owner, say):
        if os.getpid() != owner:
            raise KeyError("beside")
        time.sleep(0.01)

    def die(self, owner, say):
        if os.getpid() != owner:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)

    def learn(self, factor, say):
        (factor * self.network(torch.ones(1, 2)).sum()).backward()
        return factor


@pytest.fixture
def helpers():
    work = Work()
    found = Helpers(work, {"network": nn.ModuleList([work.network, work.unused])}, 2)
    yield found
    found.close()


def test_units_come_back_in_order_and_are_heard_once(helpers):
    heard: list[int] = []
    found = helpers.map("who", [(i,) for i in range(40)], heard.append)
    assert [number for number, _ in found] == list(range(40))
    assert sorted(heard) == list(range(40))


def test_gradients_add_up_and_what_has_none_gets_none(helpers):
    work = helpers._target
    assert helpers.add_gradients("network", "learn", [(float(i),) for i in range(5)], print) == [
        0.0,
        1.0,
        2.0,
        3.0,
        4.0,
    ]
    assert work.network.weight.grad.tolist() == [[10.0, 10.0]]
    assert work.unused.weight.grad is None


def test_an_error_is_the_one_that_was_raised_with_its_place(helpers):
    here = os.getpid()
    with pytest.raises(KeyError, match="beside") as raised:
        helpers.map("fail", [(here,)] * 40, print)
    assert "in fail" in raised.value.__notes__[0]
    assert len(helpers.map("who", [(1,), (2,)], lambda _: None)) == 2, "they go on"


def test_a_helper_that_dies_is_told(helpers):
    with pytest.raises(HelperLost, match="exit code -9"):
        helpers.map("die", [(os.getpid(),)] * 400, lambda _: None)


def test_helpers_end_with_their_owner_whoever_was_forked_after_them():
    work = Work()
    helpers = Helpers(work, {"network": work.network}, 2)
    processes = [helper._process for helper in helpers._helpers]
    # It inherits the pipes, as a step's tracker does that is opened after its engine.
    later = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
    later.start()
    helpers.close()
    assert [process.exitcode for process in processes] == [0, 0]
    assert later.is_alive()
    later.kill()
