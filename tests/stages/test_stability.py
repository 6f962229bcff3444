"""The guard in a run, with a real engine: what is undone, what stays, and that a kill changes none.

The spike is real: one update with learning rates a thousand times too large.
"""

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vagen.engines.local.engine import LocalEngine
from vagen.learning.guard import TrainingUnstable
from vagen.models.loading import load_model
from vagen.progress import configure, read_events
from vagen.run.folder import committed
from vagen.run.run import Run
from vagen.stages.execute import execute, stage_named
from vagen.stages.weights import engine_at, prune_checkpoints
from vagen.steps import ITERATION
from vagen.storage import commit_directory, read_manifest
from vagen.train import iterate

GUARD = ("trainer.total_training_steps=9", "trainer.guard.enable=true", "trainer.guard.max_kl=5")
GUARD += ("critic.center_values=true",)
FILES = (
    "policy/model.safetensors",
    "critic.safetensors",
    "actor_optimizer.safetensors",
    "critic_optimizer.safetensors",
)


@pytest.fixture
def make_guarded(make_started_run) -> Callable[..., Run]:
    """A run with a guard and the shared warm start."""

    def make(*overrides: str) -> Run:
        run = make_started_run(*GUARD, *overrides)
        configure(run.events)
        return run

    return make


@pytest.fixture
def spikes(monkeypatch) -> set[int]:
    """Iterations (by the engine's count of calls) whose update gets out of hand."""
    chosen: set[int] = set()
    original = LocalEngine.update

    def update(engine: LocalEngine, rows: Any, images: Any, **options: Any) -> dict[str, float]:
        iteration = int(rows[0].trajectory_id[:4])
        if iteration not in chosen:
            return original(engine, rows, images, **options)
        scale, engine.lr_scale = engine.lr_scale, engine.lr_scale * 1000
        metrics = original(engine, rows, images, **options)
        engine.lr_scale = scale
        return metrics

    monkeypatch.setattr(LocalEngine, "update", update)
    return chosen


def train(run: Run, *iterations: int) -> None:
    for iteration in iterations:
        iterate(run, iteration, iteration + 1)
    run.await_checkpoint()


def fresh(run: Run) -> Run:
    """The run as a new process opens it."""
    return Run(run.path, run.experiment, run.infra)


def payload(run: Run, iteration: int) -> dict[str, Any]:
    return read_manifest(run.step(iteration, "update")).payload


def digests(run: Run, iteration: int) -> dict[str, str]:
    files = read_manifest(run.checkpoint(iteration)).files
    return {name: files[name].sha256 for name in FILES}


def counters(run: Run, iteration: int) -> dict[str, Any]:
    return json.loads((run.checkpoint(iteration) / "engine.json").read_text())


def content(engine: LocalEngine) -> dict[str, torch.Tensor]:
    """Everything that training changes, by name."""
    found = {f"actor.{k}": v.clone() for k, v in engine.actor.model.state_dict().items()}
    assert engine.critic is not None
    found |= {f"critic.{k}": v.clone() for k, v in engine.critic.state_dict().items()}
    for optimizer, module in (
        (engine.learners["actor"].optimizer, engine.actor.model),
        (engine.learners["critic"].optimizer, engine.critic),
    ):
        names = {parameter: name for name, parameter in module.named_parameters()}
        for parameter, state in optimizer.state.items():
            found |= {f"{names[parameter]}|{k}": v.clone() for k, v in state.items()}
    return found


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


@pytest.mark.slow
def test_a_spike_is_undone_bit_by_bit_and_training_goes_on_with_smaller_rates(make_guarded, spikes):
    run = make_guarded()
    spikes.add(1)
    train(run, 0)
    before = content(engine_at(run, "iteration-0000"))
    train(run, 1)
    assert run.engine.version == "iteration-0001"
    assert_same(content(run.engine), before)
    assert digests(run, 1) == digests(run, 0)
    assert counters(run, 1) == {**counters(run, 0), "lr_scale": 0.5}

    found = payload(run, 1)
    assert found["rollback"]["to"] == "iteration-0000"
    assert "nats per token is above 5" in found["rollback"]["reason"]
    assert not found["rollback"]["batch_dropped"]
    assert found["history"]["guard/rolled_back"] == found["history"]["guard/rollbacks"] == 1
    assert abs(found["history"]["actor/update_kl"]) > 0.5, "what was condemned stays in the history"
    events = [event for event in read_events(run.events) if event["event"] == "rolled_back"]
    assert [(e["iteration"], e["to"], e["lr_scale"]) for e in events] == [
        (1, "iteration-0000", 0.5)
    ]

    train(run, 2)
    first, third = payload(run, 0)["metrics"], payload(run, 2)["metrics"]
    for network in ("actor", "critic"):
        assert third[f"{network}/lr"] == first[f"{network}/lr"] / 2
    assert third["guard/rolled_back"] == 0 and third["guard/rollbacks"] == 1
    assert digests(run, 2) != digests(run, 1)
    own = read_manifest(run.step(2, "rollout")).payload
    assert own["policy_version"] == "iteration-0001"


@pytest.mark.slow
def test_before_anything_is_good_the_warm_start_is_where_to_go_back_to(make_guarded, spikes):
    run = make_guarded()
    spikes.add(0)
    train(run, 0)
    assert payload(run, 0)["rollback"]["to"] == "warm_start"
    saved = load_model(run.checkpoint(0) / "policy").model.state_dict()
    start = load_model(run.warm_start / "policy").model.state_dict()
    assert_same(saved, start)
    engine = engine_at(fresh(run), "iteration-0000")
    assert engine.updates == 0 and engine.lr_scale == 0.5
    assert (
        not engine.learners["actor"].optimizer.state
        and not engine.learners["critic"].optimizer.state
    )
    assert not engine.critic.head.weight.any() and not engine.critic.head.bias.any()
    train(run, 1)
    assert payload(run, 1)["metrics"]["guard/rolled_back"] == 0


COLLAPSE = ("trainer.guard.max_kl=null", "trainer.guard.min_entropy=null")
COLLAPSE += ("trainer.guard.max_entropy_factor=null", "trainer.guard.grad_norm_factor=null")
COLLAPSE += ("trainer.guard.window=2", "trainer.guard.max_invalid_rise=0.05")


@pytest.mark.slow
def test_a_collapse_that_the_next_rollout_shows_drops_its_batch(make_guarded, spikes):
    run = make_guarded(*COLLAPSE)
    spikes.add(1)
    train(run, 0, 1)
    assert "rollback" not in payload(run, 1), "the update's own metrics said nothing"
    assert payload(run, 1)["guard"]["good"] == "iteration-0000"
    train(run, 2)
    found = payload(run, 2)
    assert found["rollback"]["to"] == "iteration-0000"
    assert found["rollback"]["batch_dropped"]
    assert "invalid actions" in found["rollback"]["reason"]
    assert not any(name.startswith(("actor/", "critic/loss")) for name in found["metrics"])
    assert digests(run, 2) != digests(run, 1)
    engine = engine_at(fresh(run), "iteration-0002")
    assert engine.updates == 1, "as after the first update"


@pytest.mark.slow
def test_without_the_guard_it_is_only_said(make_guarded, spikes):
    run = make_guarded("trainer.guard.enable=false")
    spikes.add(1)
    train(run, 0, 1)
    found = payload(run, 1)
    assert found["history"]["guard/would_roll_back"] == 1
    assert found["history"]["guard/rolled_back"] == 0
    assert "above 5" in found["condemned"] and "rollback" not in found
    assert digests(run, 1) != digests(run, 0)
    assert counters(run, 1)["updates"] == 2 and counters(run, 1)["lr_scale"] == 1


@pytest.mark.slow
def test_a_good_run_is_the_same_with_and_without_the_guard(make_guarded):
    guarded, plain = make_guarded(), make_guarded("trainer.guard.enable=false")
    for run in (guarded, plain):
        train(run, 0, 1)
        assert payload(run, 1)["history"]["guard/would_roll_back"] == 0
    assert digests(guarded, 1) == digests(plain, 1)


@pytest.mark.slow
def test_too_many_rollbacks_end_the_run_with_a_reason(make_guarded, spikes):
    run = make_guarded("trainer.guard.max_rollbacks=1")
    spikes.update((0, 1))
    train(run, 0)
    with pytest.raises(TrainingUnstable, match=r"rolled back 1 times .* KL .* is above 5"):
        train(run, 1)
    assert committed(run.step(1, "update")) is None and committed(run.checkpoint(1)) is None


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [(), COLLAPSE])
def test_a_run_that_was_killed_anywhere_goes_on_with_the_same_numbers(
    make_guarded, spikes, overrides
):
    """Every step with nothing in memory, each update killed once just before it was committed."""
    whole, killed = make_guarded(*overrides), make_guarded(*overrides)
    spikes.add(2)
    train(whole, *range(4))
    for iteration in range(4):
        for stage in (*ITERATION, "update"):
            shutil.rmtree(killed.step(iteration, "update"), ignore_errors=True)
            process = fresh(killed)
            execute(process, stage_named(stage), iteration=iteration)
            process.await_checkpoint()
    for iteration in range(4):
        assert payload(killed, iteration) == payload(whole, iteration)
    assert digests(killed, 3) == digests(whole, 3)
    assert payload(whole, 3)["metrics"]["guard/rollbacks"] >= 1


def test_the_last_good_checkpoint_is_kept(make_guarded):
    run = make_guarded()
    for iteration in range(6):
        with commit_directory(run.checkpoint(iteration), kind="checkpoint"):
            pass
    prune_checkpoints(run, 5, base="iteration-0002")
    left = sorted(path.name for path in (run.path / "checkpoints").iterdir())
    assert left == ["0002", "0004", "0005"]
