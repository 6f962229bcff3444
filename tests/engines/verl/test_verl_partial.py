"""Partial rollouts on the distributed engine: real players, servers and updates."""

import asyncio
from collections import Counter
from typing import Any

import numpy as np
import pytest

from vagen.engines.verl import rollout_workers
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.carried import read_carried
from vagen.run import layout
from vagen.train import iterate

pytestmark = pytest.mark.slow

ITERATIONS = 3
WORDS = (
    *("preset=grpo_mask", "rollout_manager.n_trajectory=2", "data.train_batch_size=3"),
    *("rollout_manager.max_turns=4", "data.max_trajectory_length=400"),
    *("actor_rollout_ref.actor.tis_imp_ratio_cap=2", "actor_rollout_ref.actor.optim.lr=3e-3"),
    *("actor_rollout_ref.rollout.max_concurrency=8", f"trainer.total_training_steps={ITERATIONS}"),
)
OVER = "rollout_manager.over_sampling_batch_size"


@pytest.fixture
def unequal(monkeypatch) -> None:
    """A level of each iteration takes two seconds more for every turn."""

    class Unequal(rollout_workers.RolloutWorker):
        def __init__(self, *args: Any):
            super().__init__(*args)
            answer = self.client.generate

            async def slowly(request_id: str, **request: Any) -> Any:
                if request_id.split("-")[1] == "0001":
                    await asyncio.sleep(2)
                return await answer(request_id, **request)

            self.client.generate = slowly

    monkeypatch.setattr(rollout_workers, "RolloutWorker", Unequal)


def trained(run_of, *overrides: str, infra: tuple[str, ...] = ()):
    run = run_of(*WORDS, *overrides, infra=infra)
    with run.session():
        iterate(run, 0, ITERATIONS)
    return run


def batches(run) -> list[TrajectoryBatch]:
    return [TrajectoryBatch.load(run.step(i, "advantage")) for i in range(ITERATIONS)]


def test_with_nothing_carried_on_it_is_the_synchronous_training(run_of, tmp_path) -> None:
    # Sums of batches that differ in the last bits: no token may depend on them.
    slowly = "actor_rollout_ref.actor.optim.lr=1e-5"
    plain, partial = (
        trained(run_of, slowly, *words, infra=(f"engine={name}", f"output_dir={tmp_path / name}"))
        for name, words in {"local": (), "verl": (f"{OVER}=3",)}.items()
    )
    for batch, other in zip(batches(plain), batches(partial), strict=True):
        for a, b in zip(batch.trajectories, other.trajectories, strict=True):
            assert {turn.policy_version for turn in b.turns} == {batch.policy_version}
            for row, same in zip(a.rows, b.rows, strict=True):
                np.testing.assert_array_equal(row.input_ids, same.input_ids)
                for name, column in row.columns.items():
                    np.testing.assert_allclose(column, same.columns[name], atol=1e-3, err_msg=name)
    assert {m["rollout/staleness"] for m in partial.iteration_metrics()} == {0.0}


def test_what_is_carried_on_is_played_and_weighted_with_new_weights(run_of, unequal) -> None:
    """Servers answer with the newest weights, and a token's record is of those that sampled it."""
    run = trained(run_of, f"{OVER}=5", infra=("verl.agent_workers=2", "verl.rollout_gpus=1"))
    newest = stale_ones = 0
    seen: Counter[str] = Counter()
    for iteration, batch in enumerate(batches(run)):
        seen += Counter(t.group_id for t in batch.trajectories)
        current, stale = [], []
        for t in batch.trajectories:
            own = np.array(
                [turn.policy_version == batch.policy_version for turn in t.turns] + [False]
            )
            older = t.turns[0].policy_version != batch.policy_version
            for row in t.rows:
                gap = np.abs(row.rollout_logprobs - row.columns["old_logprobs"])
                current += gap[row.loss_mask & own[row.turn_index]].tolist()
                stale += gap[row.loss_mask & ~own[row.turn_index]].tolist()
                newest += older * int((row.loss_mask & own[row.turn_index]).sum())
        # Turns of carried episodes too: no server has kept what old weights computed.
        assert max(current, default=0) < 1e-3
        assert not stale or max(stale) > 1e-2
        stale_ones += len(stale)
        metrics = run.iteration_metrics()[iteration]
        assert (metrics["rollout/staleness"] > 0) == bool(stale)
        assert (metrics["actor/tis_capped"] > 0) <= bool(stale)
    assert newest and stale_ones
    assert set(seen.values()) == {2} and len(seen) == 3 * ITERATIONS
    folders = [run.step(i, "rollout") / layout.CARRIED for i in range(ITERATIONS)]
    assert [len(read_carried(folder)) for folder in folders] == [4, 4, 0]
