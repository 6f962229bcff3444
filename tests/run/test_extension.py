"""A training goes on from another folder, as a copy, moved, and beyond the end it was given."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vagen.cli.main import USER_ERROR, main
from vagen.run.folder import extensions
from vagen.run.run import Run
from vagen.storage import read_manifest
from vagen.tracking import open_client
from vagen.train import iterate, train


def weights(run: Run, iteration: int) -> dict[str, str]:
    files = read_manifest(run.checkpoint(iteration)).part("policy")
    return {name: entry.sha256 for name, entry in files.items()}


def recorded(run: Run, metric: str = "train/success") -> list[int]:
    """Steps at which MLflow, in the database beside the run, has a metric of it."""
    client = open_client(f"sqlite:///{run.path.parent}/mlflow.db")
    run_id = (run.path / "mlflow_run_id").read_text().strip()
    return sorted(found.step for found in client.get_metric_history(run_id, metric))


@pytest.fixture(scope="module")
def finished(make_started_run) -> Run:
    run = make_started_run("trainer.total_training_steps=1")
    train(run)
    return run


@pytest.mark.slow
def test_a_finished_run_is_told_to_be(finished, capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    events = finished.events.read_bytes()
    assert main(["resume", str(finished.path)]) == 0
    assert "is finished, there is nothing to do" in capfd.readouterr().out
    assert finished.events.read_bytes() == events and not any(tmp_path.iterdir())
    assert main(["resume", str(finished.path), "critic.optim.lr=1"]) == USER_ERROR
    assert "can only be made longer, trainer.total_training_steps=" in capfd.readouterr().err
    assert main(["resume", str(finished.path), "trainer.total_training_steps=1"]) == USER_ERROR
    assert "is 1 already" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("beside", [True, False], ids=["beside it", "elsewhere"])
def test_a_copy_has_a_record_of_its_own(finished, beside, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    steps = recorded(finished)
    folder = finished.path.parent / "copy" if beside else tmp_path / "moved" / "copy"
    shutil.copytree(finished.path, folder)
    (folder / "config" / "infra.yaml").write_text("output_dir: outputs\nthreads: 1\n")
    shutil.rmtree(folder / "registration")
    copy = Run.open(folder)
    assert copy.infra.output_dir == str(folder.parent)
    train(copy)
    names = [(run.path / "mlflow_run_id").read_text() for run in (finished, copy)]
    assert names[0] != names[1]
    assert recorded(finished) == steps and recorded(copy) == steps
    assert recorded(copy, "test/success") == [0, 1]
    assert not (tmp_path / "outputs").exists()


@pytest.mark.slow
def test_a_finished_training_can_be_extended(make_started_run, capfd):
    long = make_started_run("trainer.total_training_steps=2")
    run = make_started_run("trainer.total_training_steps=1")
    train(run)
    with long.session():
        iterate(long)
    before = json.loads((run.path / "summary.json").read_text())
    assert main(["resume", str(run.path), "trainer.total_training_steps=2"]) == 0
    extended = Run.open(run.path)
    assert weights(extended, 1) == weights(long, 1), "as if it had been begun at that length"
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["iterations"] == summary["final"]["iteration"] == 2
    assert summary["extended"] == extensions(run.path) == [{"from": 1, "to": 2, "done": 1}]
    assert summary["config_digest"] == before["config_digest"]
    assert summary["model_uri"] != before["model_uri"], "a version of its own"
    assert recorded(extended) == [0, 1] and recorded(extended, "test/success") == [0, 1, 2]
    assert "is finished" not in capfd.readouterr().out


@pytest.mark.slow
def test_one_that_ended_with_its_best_policy_can_be_extended(make_started_run, capfd):
    """Its policy stays the best one until more of them are validated."""
    best = ("trainer.test_freq=1", "trainer.select=best_validation")
    run = make_started_run("trainer.total_training_steps=1", *best)
    train(run)
    assert main(["resume", str(run.path), "trainer.total_training_steps=2"]) == 0
    assert Run.open(run.path).finished_iterations == 2
    assert json.loads((run.path / "summary.json").read_text())["iterations"] == 2
    assert "is finished" not in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("warm_commands")
def test_a_running_training_takes_its_extension(make_started_run):
    words = ("trainer.total_training_steps=1", "judge.schedule.type=linear")
    run = make_started_run(*words)
    with run.session():
        arguments = ["resume", str(run.path), "trainer.total_training_steps=2"]
        answer = subprocess.run(
            [sys.executable, "-m", "vagen.cli.main", *arguments], capture_output=True, text=True
        )
        assert answer.returncode == 0 and "from its next iteration" in answer.stdout
        iterate(run)
    assert run.finished_iterations == 2
    assert run.experiment.judge.schedule.iterations == 1, "ends where it was to end"


def test_what_cannot_be_extended(tmp_path: Path, make_run):
    run = make_run(
        "rollout_manager.over_sampling_batch_size=8", "actor_rollout_ref.actor.tis_imp_ratio_cap=2"
    )
    with pytest.raises(ValueError, match="over_sampling_batch_size"):
        run.extend(9)


@pytest.mark.slow
@pytest.mark.usefixtures("warm_commands")
def test_an_interrupt_leaves_one_line_with_what_goes_on(make_started_run):
    run = make_started_run(model="tiny:text")
    command = [sys.executable, "-m", "vagen.cli.main", "resume", str(run.path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (run.events.exists() and '"stage": "evaluate"' in run.events.read_text()):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == f"stopped; to continue: vagen resume {run.path}"
    assert "fail" not in said and "finalize" not in said
    assert '"state": "CANCELLED"' in run.events.read_text()
