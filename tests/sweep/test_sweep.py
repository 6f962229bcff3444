"""Sweeps of real trainings on this machine."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from lake import digests
from small_experiment import experiment_tree

from vagen.progress import read_events
from vagen.tracking import default_uri, open_client

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_steps")]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with an experiment of two iterations, `text.yaml`."""
    tree = experiment_tree(model="tiny:text") | {"warm_start": {"steps": 5, "batch_size": 4}}
    tree["trainer"] = {"total_training_steps": 2, "test_freq": 1}
    (tmp_path / "text.yaml").write_text(yaml.safe_dump(tree))
    return tmp_path


def begin(place: Path, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "vagen.cli.main", *words]
    return subprocess.Popen(
        command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: "subprocess.Popen[str]", code: int = 0) -> str:
    output, _ = process.communicate(timeout=900)
    assert process.returncode == code, output
    return output


def trials(place: Path, name: str) -> list[dict[str, Any]]:
    return json.loads((place / "outputs" / name / "results.json").read_text())["trials"]


def starts(run: Path, stage: str) -> int:
    events = read_events(run / "events.jsonl") if run.exists() else []
    return sum(event["event"] == "stage_started" and event["stage"] == stage for event in events)


def await_stage(process: "subprocess.Popen[str]", run: Path, stage: str) -> None:
    """Returns when a stage has begun once more."""
    before, deadline = starts(run, stage), time.monotonic() + 600
    while starts(run, stage) == before:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, f"{stage} never began"
        time.sleep(0.02)


def ends(run: Path) -> int:
    return sum(event["event"] == "run_ended" for event in read_events(run / "events.jsonl"))


def test_a_killed_sweep_goes_on_to_the_results_of_one_left_alone(place: Path):
    words = ["run", "text.yaml", "--seeds", "0-1", "infra.threads=1"]
    finish(begin(place, *words, "--name", "whole"))
    killed = begin(place, *words, "--name", "killed")
    runs = place / "outputs" / "killed" / "runs"
    await_stage(killed, runs / "killed-001", "judge")
    killed.kill()
    killed.communicate()
    assert ends(runs / "killed-000") == 1

    interrupted = begin(place, *words, "--name", "killed")
    await_stage(interrupted, runs / "killed-001", "update")
    interrupted.send_signal(signal.SIGINT)
    said = finish(interrupted, 130)
    assert f"go on with: vagen {' '.join(words)} --name killed" in said
    finish(begin(place, *words, "--name", "killed"))

    assert ends(runs / "killed-000") == 1  # what had finished was not run again
    for left_alone, resumed in zip(trials(place, "whole"), trials(place, "killed"), strict=True):
        for key in ("parameters", "state", "success", "validations", "test", "config_digest"):
            assert resumed[key] == left_alone[key]
        whole = place / "outputs" / "whole" / "runs" / left_alone["run"]
        assert digests(runs / resumed["run"]) == digests(whole)
    assert len({trial["config_digest"] for trial in trials(place, "whole")}) == 2


def test_trials_are_children_in_mlflow_and_a_failure_ends_nothing(place: Path):
    tree = {"name": "lam", "experiment": "text.yaml", "parameters": {"algorithm.lam": [0.5, 1.0]}}
    (place / "lam.yaml").write_text(yaml.safe_dump(tree))
    sweep = begin(place, "sweep", "lam.yaml", "infra.threads=1", "trainer.total_training_steps=1")
    broken = place / "outputs" / "lam" / "runs" / "lam-000"
    while not (broken / "config" / "infra.yaml").exists():
        assert sweep.poll() is None, sweep.communicate()[0]
        time.sleep(0.01)
    (broken / "levels").touch()  # a file, where the first step wants its folder
    said = finish(sweep)
    assert "lam-000: failed" in said
    failed, done = trials(place, "lam")
    assert (failed["state"], done["state"]) == ("fail", "complete")
    assert "logs/lam-000.log" in failed["reason"]
    assert failed["parameters"] != done["parameters"]

    client = open_client(default_uri(place / "outputs"))
    parent = (place / "outputs" / "lam" / "mlflow_run_id").read_text().strip()
    child = (broken.parent / "lam-001" / "mlflow_run_id").read_text().strip()
    assert client.get_run(child).data.tags["mlflow.parentRunId"] == parent
    assert client.get_run(parent).info.status == "FINISHED"
    assert [file.path for file in client.list_artifacts(parent)] == ["compare", "results.json"]
    assert "lam=" in (place / "outputs" / "lam" / "compare" / "index.html").read_text()

    (broken / "levels").unlink()
    finish(
        begin(
            place,
            "sweep",
            "lam.yaml",
            "infra.threads=1",
            "trainer.total_training_steps=1",
            "--rerun",
            "failed",
        )
    )
    assert [trial["state"] for trial in trials(place, "lam")] == ["fail", "complete", "complete"]


def test_what_does_worse_at_a_rung_ends_early(place: Path):
    tree = {
        "name": "asha",
        "experiment": "text.yaml",
        "overrides": ["warm_start.steps=60", "envs.game.val_size=16"],
        "parameters": {"warm_start.random_moves": [0.0, 1.0]},
        "asha": {"min_iterations": 1, "reduction_factor": 2},
    }
    (place / "asha.yaml").write_text(yaml.safe_dump(tree))
    # One after the other: the second meets the first's whole curve at its first rung.
    finish(begin(place, "sweep", "asha.yaml", "infra.threads=1", "--jobs", "1"))
    found = trials(place, "asha")
    pruned = [trial for trial in found if trial["state"] == "pruned"]
    whole = [trial for trial in found if trial["state"] == "complete"]
    assert len(pruned) == len(whole) == 1
    for trial in pruned:
        last = max(trial["validations"], key=int)
        assert trial["success"] == trial["validations"][last]
        # Another one was better after as many iterations.
        assert any(
            other["validations"].get(last, 0.0) > trial["success"]
            for other in found
            if other is not trial
        )
        run = place / "outputs" / "asha" / "runs" / trial["run"]
        assert not (run / "evaluations" / "final").exists()
    for trial in whole:
        assert trial["iterations"] == 2
        assert trial["test"] is not None


def test_a_changed_sweep_is_refused(place: Path):
    words = ["run", "text.yaml", "infra.threads=1", "--seeds", "0", "--name", "one"]
    sweep = begin(place, *words)
    await_stage(sweep, place / "outputs" / "one" / "runs" / "one-000", "build")
    second = begin(place, *words)
    assert "is in use by another process" in finish(second, 2)
    sweep.terminate()
    finish(sweep, 128 + signal.SIGTERM)
    assert "a different sweep" in finish(begin(place, *words, "critic.optim.lr=1"), 2)
    text = (place / "text.yaml").read_text()
    (place / "text.yaml").write_text(text.replace("lr: 0.001", "lr: 0.002"))
    assert "an experiment of the sweep in" in finish(begin(place, *words), 2)
