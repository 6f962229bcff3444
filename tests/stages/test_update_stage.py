"""The update step, its checkpoints and the engine that stays."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from vagen import progress
from vagen.engines.local.engine import LocalEngine
from vagen.engines.make import device_of
from vagen.models.loading import load_model
from vagen.rollout.batch import BatchError, TrajectoryBatch
from vagen.rollout.runner import derive_seed
from vagen.run.folder import committed, read_results
from vagen.run.layout import KEEP_CHECKPOINTS
from vagen.run.run import Run
from vagen.run.spent import ENGINE_STARTED
from vagen.stages.evaluate import evaluate
from vagen.stages.update import update
from vagen.stages.weights import engine_at, prune_checkpoints, saved_iterations
from vagen.steps import version_after, version_before
from vagen.storage import (
    CorruptArtifact,
    StorageError,
    commit_directory,
    read_manifest,
    write_files,
)
from vagen.train import iterate


@pytest.fixture
def run(warm_runs, batch_dirs, tmp_path):
    """A copy of the vision-language run after its first advantage step."""
    source = warm_runs["tiny:vl"]
    assert batch_dirs["tiny:vl"].is_relative_to(source.path)
    path = shutil.copytree(source.path, tmp_path / "run")
    return Run(path, source.experiment, source.infra)


def checkpoint(run: Run, engine, iteration: int) -> None:
    with commit_directory(run.checkpoint(iteration), kind="checkpoint") as folder:
        engine.save(folder)


def test_names_of_policies():
    assert [version_before(i) for i in range(2)] == ["warm_start", "iteration-0000"]
    assert version_after(0) == version_before(1)


@pytest.mark.slow
def test_a_step_run_again_leaves_the_run_as_it_is(run, tmp_path, make_engine):
    before = {p: p.stat().st_mtime_ns for p in run.path.rglob("*")}
    out = update(run, 0, out=tmp_path / "out")
    assert {p: p.stat().st_mtime_ns for p in run.path.rglob("*")} == before
    assert run.engine is None, "the updated weights must not be taken for the run's"
    assert out["metrics"]["actor/skipped_steps"] == 0
    again = load_model(tmp_path / "out" / "checkpoint" / "policy").model.state_dict()

    batch = TrajectoryBatch.load(run.step(0, "advantage"))
    engine = make_engine()
    rows = [row for trajectory in batch.trajectories for row in trajectory.rows]
    engine.update(rows, batch.images, seed=derive_seed(run.experiment.seed, "update", 0))
    for name, weight in engine.actor.model.state_dict().items():
        assert torch.equal(again[name], weight), name


@pytest.mark.slow
def test_the_critics_warm_up_is_counted_in_iterations(run, tmp_path):
    trainer = run.experiment.trainer.model_copy(update={"critic_warmup": 1})
    run.experiment = run.experiment.model_copy(update={"trainer": trainer})
    source = tmp_path / "batch"
    batch = TrajectoryBatch.load(run.step(0, "advantage"))
    batch.config_digest = run.config_digest
    batch.save(source)
    warming = update(run, 0, source=source, out=tmp_path / "first")["metrics"]
    learning = update(run, 1, source=source, out=tmp_path / "second")["metrics"]
    assert "critic/loss" in warming and "actor/loss" not in warming
    assert "critic/loss" in learning and "actor/loss" in learning


def test_a_batch_of_another_configuration_or_step_is_refused(run, tmp_path):
    digest = run.config_digest
    run.experiment = run.experiment.model_copy(update={"seed": 99})
    with pytest.raises(BatchError, match=digest):
        update(run, 0, out=tmp_path / "out")
    run.experiment = run.experiment.model_copy(update={"seed": 7})
    with pytest.raises(BatchError, match="comes from the step 'rollout'"):
        update(run, 0, source=run.step(0, "rollout"), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_machine_is_said(run):
    progress.configure(run.events)
    machine = {"device": "cpu", "threads": 4, "torch": torch.__version__}
    progress.event(ENGINE_STARTED, gpus=0, machine=machine)
    engine_at(run, "warm_start")
    run.engine = None
    engine_at(run, "warm_start")
    progress.close()
    told = [event["text"] for event in progress.read_events(run.events) if event["event"] == "note"]
    assert len(told) == 1 and "goes on with threads 1, it had 4" in told[0]


def test_the_engine_stays_while_its_weights_are_wanted(run):
    engine = engine_at(run, "warm_start")
    assert engine_at(run, "warm_start") is engine
    checkpoint(run, engine, 0)
    later = engine_at(run, "iteration-0000")
    assert later.version == "iteration-0000"
    assert engine_at(run, "iteration-0000") is later
    first = engine_at(run, "warm_start")
    assert first.version == "warm_start" and first is not later


def test_a_new_process_loads_what_the_old_one_had(run):
    engine = engine_at(run, "warm_start")
    with torch.no_grad():
        engine.critic.head.bias.fill_(3.0)
        engine.actor.model.lm_head.weight.mul_(2)
    engine.updates = 1
    checkpoint(run, engine, 0)
    other = Run(run.path, run.experiment, run.infra)
    loaded = engine_at(other, "iteration-0000")
    assert loaded.updates == 1 and float(loaded.critic.head.bias.detach()) == 3.0
    assert torch.equal(loaded.actor.model.lm_head.weight, engine.actor.model.lm_head.weight)
    start = load_model(run.warm_start / "policy").model.lm_head.weight
    assert torch.equal(loaded.reference.model.lm_head.weight, start), "the reference is the start"


@pytest.mark.parametrize("file", ["policy/model.safetensors", "critic.safetensors", "engine.json"])
def test_a_changed_checkpoint_is_refused(run, file):
    checkpoint(run, engine_at(run, "warm_start"), 0)
    path = run.checkpoint(0) / file
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptArtifact, match=path.name):
        engine_at(run, "iteration-0000")


def test_a_changed_warm_start_is_refused(run):
    (run.warm_start / "policy" / "config.json").write_text(json.dumps({}))
    with pytest.raises(CorruptArtifact, match=r"config\.json"):
        engine_at(run, "warm_start")


def test_a_checkpoint_that_is_gone_is_named(run):
    with pytest.raises(StorageError, match="iterations/0000/update"):
        engine_at(run, "iteration-0005")


def test_only_the_latest_checkpoints_are_kept(run):
    for iteration in range(4):
        with commit_directory(run.checkpoint(iteration), kind="checkpoint") as folder:
            (folder / "weights").write_bytes(b"x")
        prune_checkpoints(run, iteration)
        kept = [i for i in range(4) if committed(run.checkpoint(i))]
        assert kept == list(range(max(0, iteration + 1 - KEEP_CHECKPOINTS), iteration + 1))
    left = sorted(path.name for path in (run.path / "checkpoints").iterdir())
    assert left == ["0002", "0003"]


FOUR = ("trainer.total_training_steps=4", "trainer.test_freq=2")


@pytest.fixture(scope="module")
def undisturbed(make_started_run):
    """Four iterations in one process, each with a checkpoint."""
    run = make_started_run(*FOUR)
    with run.session():
        iterate(run, 0, 4)
    assert saved_iterations(run) == [2, 3]
    return run


def assert_learnt_the_same(run: Run, other: Run) -> None:
    """Weights, moments, counters, metrics and validations, to the last bit."""
    manifests = [read_manifest(one.checkpoint(3)) for one in (run, other)]
    assert manifests[0].files == manifests[1].files
    for iteration in range(4):
        one, two = (read_manifest(r.step(iteration, "update")).payload for r in (run, other))
        assert one["history"] == two["history"]
    one, two = (read_results(r.evaluation("iteration-0002")) for r in (run, other))
    assert one == two


@pytest.mark.slow
def test_what_was_not_saved_is_learnt_again(make_started_run, undisturbed):
    """Every iteration by a process that has nothing in memory, and the validation by another."""
    run = make_started_run(*FOUR)
    run.infra = run.infra.model_copy(update={"save_freq": 3})
    for iteration in range(4):
        opened = Run(run.path, run.experiment, run.infra)
        with opened.session():
            iterate(opened, iteration, iteration + 1)
        if iteration == 1:
            shutil.rmtree(run.evaluation("iteration-0002"))
            opened = Run(run.path, run.experiment, run.infra)
            with opened.session():
                evaluate(opened, "iteration-0002", "val")
    assert saved_iterations(run) == [2, 3]
    assert_learnt_the_same(run, undisturbed)


DISK_THAT_HANGS = """
import sys, time
from vagen.engines.local.engine import LocalEngine
from vagen.run.run import Run
from vagen.train import iterate

begin = LocalEngine.begin_save

def begin_and_hang(engine, directory):
    finish = begin(engine, directory)
    return lambda: finish() and time.sleep(3600)

LocalEngine.begin_save = begin_and_hang
run = Run.open(sys.argv[1])
with run.session():
    iterate(run, 0, 4)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("warm_commands")
def test_a_process_that_is_killed_while_it_writes_a_checkpoint_has_lost_nothing(
    make_started_run, undisturbed
):
    """The files are written and not yet committed, and the next iteration has begun."""
    run = make_started_run(*FOUR)
    process = subprocess.Popen([sys.executable, "-c", DISK_THAT_HANGS, str(run.path)])
    while committed(run.step(1, "advantage")) is None:
        assert process.poll() is None
        time.sleep(0.1)
    process.kill()
    process.wait()
    assert committed(run.step(0, "update")) is not None and saved_iterations(run) == []
    (left,) = (run.path / "checkpoints").iterdir()
    assert left.name.startswith(".0000.partial-") and (left / "policy").is_dir()
    with run.session():
        iterate(run, 0, 4)
    assert sorted(path.name for path in left.parent.iterdir()) == ["0002", "0003"]
    assert_learnt_the_same(run, undisturbed)


@pytest.mark.slow
def test_a_disk_that_fails_under_a_checkpoint_is_told_once_and_loses_nothing(
    make_started_run, undisturbed, monkeypatch
):
    run = make_started_run(*FOUR)
    begin = LocalEngine.begin_save

    def fill(path: Path) -> None:
        with open("/dev/full", "wb") as file:
            file.write(b"x")

    def begin_on_a_full_disk(engine, directory):
        finish = begin(engine, directory)
        return lambda: finish() | write_files(directory, {"more": fill})

    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "begin_save", begin_on_a_full_disk)
        message = r"^the checkpoint after iteration 1 was not written: .*the disk is full.*resumed"
        with pytest.raises(StorageError, match=message), run.session():
            iterate(run, 0, 4)
    run.await_checkpoint()  # was told
    assert committed(run.step(0, "update")) is not None
    assert list((run.path / "checkpoints").iterdir()) == []
    with run.session():
        iterate(run, 0, 4)
    assert_learnt_the_same(run, undisturbed)


@pytest.mark.slow
def test_the_last_checkpoint_is_there_before_its_update(make_started_run, monkeypatch):
    """What cannot be repeated by the next step, which may be another process's."""
    run = make_started_run("trainer.total_training_steps=1")

    def fail(engine, directory):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))

    monkeypatch.setattr(LocalEngine, "begin_save", lambda *given: lambda: fail(*given))
    with pytest.raises(StorageError, match="the disk is full"), run.session():
        iterate(run, 0, 1)
    assert committed(run.step(0, "update")) is None


def test_a_gpu_that_is_not_there_is_refused(run):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    run.infra = run.infra.model_copy(update={"device": "cuda:1"})
    with pytest.raises(ValueError, match="no GPU is visible"):
        device_of(run.infra)
    run.infra = run.infra.model_copy(update={"device": "auto"})
    assert device_of(run.infra).type == "cpu"
