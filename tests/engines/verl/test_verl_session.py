"""A session in a Ray cluster outlives those who ask it, and begins again where it was killed.

The run is in a store, which is all that the second session has of it.
"""

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from verl_stories import nodes

from vagen.config import load_infra
from vagen.rollout.batch import TrajectoryBatch
from vagen.stages.progress import read_events
from vagen.stages.run import Run
from vagen.stages.step import RAY_LOGS, command, name_of, read_reply
from vagen.storage import open_store, read_manifest

pytestmark = pytest.mark.slow

BEHIND = (
    "rollout_manager.one_step_off=true",
    "actor_rollout_ref.actor.tis_imp_ratio_cap=2.0",
    "trainer.total_training_steps=2",
)
SECONDS = 600
"""More than starting an engine takes on a machine with other things to do."""
ASK = """
import sys
from vagen.stages.session import call
call(sys.argv[1], sys.argv[2], iteration=int(sys.argv[3]))
"""


@pytest.fixture
def run(make_experiment, warm_runs, tmp_path):
    """A run in a cluster of one node, with levels and warm start."""
    with nodes(1) as settings:
        infra = [f"output_dir={tmp_path}", "engine=verl", "device=cpu", "threads=1"]
        infra += [f"store={(tmp_path / 'store').as_uri()}"]
        infra += ["verl.rollout=torch", "verl.agent_workers=1", *settings]
        run = Run.create(make_experiment(*BEHIND), load_infra(None, infra))
        for part in ("levels", "warm_start"):
            shutil.copytree(warm_runs["tiny:vl"].path / part, run.path / part)
        yield run


def ask(run: Run, stage: str, iteration: int) -> subprocess.Popen:
    """A step: a process that has one stage executed."""
    return subprocess.Popen([sys.executable, "-c", ASK, run.mirror.uri, stage, str(iteration)])


def job(run: Run, stage: str, iteration: int) -> subprocess.Popen:
    """What a RayJob executes on a head, which Ray tells where the cluster is."""
    words = command(run.mirror.uri, stage, {"iteration": iteration})[1:]
    variables = {**os.environ, "RAY_ADDRESS": run.infra.verl.ray_address}
    return subprocess.Popen([sys.executable, *words], env=variables)


def events(run: Run, kind: str, stage: str) -> int:
    return sum(e["event"] == kind and e["stage"] == stage for e in read_events(run.path))


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
    from vagen.stages.cluster_session import end

    step = ask(run, "rollout", 0)
    deadline = time.monotonic() + SECONDS
    while not events(run, "stage_started", "rollout"):
        assert step.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    os.kill(step.pid, signal.SIGKILL)  # the stage goes on without it
    step.wait()
    for stage in ("rollout", "judge", "advantage", "update"):
        assert ask(run, stage, 0).wait(SECONDS) == 0
    # The step that came later found the stage done.
    first, second = (
        e
        for e in read_events(run.path)
        if e.get("stage") == "rollout" and e["event"] == "stage_finished"
    )
    assert second["seconds"] < first["seconds"]
    assert read_manifest(run.step(0, "update")).payload["policy_version"] == "iteration-0000"

    # Iteration 1 was played while the update ran; the session that held it is ended.
    end(run.path, run.infra.verl.ray_address)
    shutil.rmtree(run.path)
    for stage in ("rollout", "judge", "advantage", "update"):
        assert job(run, stage, 1).wait(SECONDS) == 0
        reply = read_reply(run.mirror.uri, name_of(run.mirror.uri, stage, {"iteration": 1}))
        assert reply is not None
        assert reply["result"]["uri"] == f"{run.mirror.uri}/iterations/0001/{stage}"
    # Of what the first session did, the second one needed the policies alone.
    assert not (run.step(0, "rollout") / "tokens.parquet").exists()
    assert open_store(run.infra.store).list(f"{run.name}/checkpoints")
    run.fetch(run.step(0, "advantage"))
    played = TrajectoryBatch.load(run.step(1, "rollout"))
    assert played.policy_version == "warm_start"  # one step off
    assert len(run.iteration_metrics()) == 2
    # What corrects for it: the weights that learn are not those that played.
    assert distance(run, 0) < 1e-3 < distance(run, 1)
    end(run.path, run.infra.verl.ray_address)

    # What Ray wrote on the node is saved before a cluster is let go.
    words = command(run.mirror.uri, RAY_LOGS, {})[1:]
    variables = {**os.environ, "RAY_ADDRESS": run.infra.verl.ray_address}
    subprocess.run([sys.executable, *words], env=variables, check=True, timeout=SECONDS)
    (key,) = open_store(run.infra.store).list(f"{run.name}/logs")
    logs = open_store(run.infra.store).fetch_directory(key, run.path.parent / "logs")
    names = [path.name for path in logs.rglob("*") if path.is_file()]
    assert "raylet.out" in names
    assert any(name.startswith("worker-") for name in names)
