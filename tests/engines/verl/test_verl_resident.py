"""The resident actor outlives the jobs that ask it, and begins again where it was ended.

The run is in a store, which is all that the second actor has of it.
"""

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from ray_cluster import nodes

from vagen.experiment.load import load_infra
from vagen.launch.logs import RAY_LOGS
from vagen.launch.protocol import StepOutcome, format_command, parse_verdict
from vagen.progress import read_events
from vagen.rollout.batch import TrajectoryBatch
from vagen.run.run import Run
from vagen.storage import open_store, read_manifest

pytestmark = pytest.mark.slow

BEHIND = (
    "rollout_manager.one_step_off=true",
    "actor_rollout_ref.actor.tis_imp_ratio_cap=2.0",
    "trainer.total_training_steps=2",
)
SECONDS = 600
"""More than starting an engine takes on a machine with other things to do."""


@pytest.fixture
def run(make_experiment, take_over, tmp_path):
    """A run in a cluster of one node, with levels and warm start."""
    with nodes(1) as settings:
        infra = [f"output_dir={tmp_path}", "engine=verl", "device=cpu", "threads=1"]
        infra += [f"store={(tmp_path / 'store').as_uri()}"]
        infra += ["verl.rollout=torch", "verl.agent_workers=1", *settings]
        yield take_over(Run.create(make_experiment(*BEHIND), load_infra(None, infra)))


def start(run: Run, stage: str, **arguments: int) -> subprocess.Popen[str]:
    """A job, to which Ray says where its cluster is."""
    words = format_command(run.mirror.uri, stage, {"cpu": 1, **arguments})[1:]
    variables = {**os.environ, "RAY_ADDRESS": run.infra.verl.ray_address}
    return subprocess.Popen(
        [sys.executable, *words], env=variables, stdout=subprocess.PIPE, text=True
    )


def perform(run: Run, stage: str, **arguments: int) -> StepOutcome:
    """A job from its start to its end."""
    out, _ = start(run, stage, **arguments).communicate(timeout=SECONDS)
    verdict = parse_verdict(out.splitlines()[-1])
    assert verdict is not None, out
    return verdict


def end_actor(run: Run) -> None:
    """Ends the resident actor of a run, with the engine that it holds."""
    import ray

    from vagen.launch.actor import NAMESPACE

    if not ray.is_initialized():
        ray.init(address=run.infra.verl.ray_address, log_to_driver=False)
    ray.kill(ray.get_actor(run.mirror.uri, namespace=NAMESPACE))


def events(run: Run, kind: str, stage: str) -> int:
    return sum(e["event"] == kind and e["stage"] == stage for e in read_events(run.events))


def distance(run: Run, iteration: int) -> float:
    """Largest difference of a sampled token's log-probability, learning weights against playing."""
    batch = TrajectoryBatch.load(run.step(iteration, "advantage"))
    return max(
        float(np.abs(row.columns["old_logprobs"] - row.rollout_logprobs)[row.loss_mask].max())
        for trajectory in batch.trajectories
        for row in trajectory.rows
        if row.loss_mask.any()
    )


def test_stages_are_executed_once_whoever_dies(run):
    step = start(run, "rollout", iteration=0)
    deadline = time.monotonic() + SECONDS
    while not events(run, "stage_started", "rollout"):
        assert step.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    os.kill(step.pid, signal.SIGKILL)  # the stage goes on without it
    step.wait()
    for stage in ("rollout", "judge", "advantage", "update"):
        assert "result" in perform(run, stage, iteration=0)
    # The job that came later waited for the stage, and found it done.
    assert events(run, "stage_started", "rollout") == events(run, "stage_finished", "rollout") == 1
    assert read_manifest(run.step(0, "update")).payload["policy_version"] == "iteration-0000"

    # The step has ended, and the actor goes on to write what it has learnt.
    store = open_store(run.infra.store)
    while not store.list(f"{run.name}/checkpoints"):
        assert time.monotonic() < deadline + SECONDS
        time.sleep(0.2)
    # Iteration 1 was played while the update ran; the actor that held it is ended.
    end_actor(run)
    shutil.rmtree(run.path)
    for stage in ("rollout", "judge", "advantage", "update"):
        verdict = perform(run, stage, iteration=1)
        assert verdict.get("result", {})["uri"] == f"{run.mirror.uri}/iterations/0001/{stage}"
    # Of what the first actor did, the second one needed the policies alone.
    assert not (run.step(0, "rollout") / "tokens.parquet").exists()
    assert store.list(f"{run.name}/checkpoints")
    run.fetch(run.step(0, "advantage"))
    played = TrajectoryBatch.load(run.step(1, "rollout"))
    assert played.policy_version == "warm_start"  # one step off
    assert len(run.iteration_metrics()) == 2
    # What corrects for it: the weights that learn are not those that played.
    assert distance(run, 0) < 1e-3 < distance(run, 1)

    # What Ray wrote on the node is saved before a cluster is let go.
    assert "result" in perform(run, RAY_LOGS)
    (key,) = open_store(run.infra.store).list(f"{run.name}/logs")
    logs = open_store(run.infra.store).fetch_directory(key, run.path.parent / "logs")
    names = [path.name for path in logs.rglob("*") if path.is_file()]
    assert "raylet.out" in names
    assert any(name.startswith("worker-") for name in names)
