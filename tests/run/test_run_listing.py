"""`vagen runs`: how the runs in a folder stand."""

import json
from pathlib import Path

import pytest
from lake import lake_yaml

from vagen.cli.main import USER_ERROR, main
from vagen.config import InfraConfig
from vagen.experiment.load import load_experiment
from vagen.run.listing import list_runs, status_of
from vagen.run.run import Run
from vagen.stages.execute import closing
from vagen.storage import commit_directory


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return made(tmp_path, "one")


def made(folder: Path, name: str) -> Run:
    (folder / "lake.yaml").write_text(lake_yaml())
    infra = InfraConfig(output_dir=str(folder / "outputs"))
    return Run.create(load_experiment(str(folder / "lake.yaml")), infra, name=name)


def learn(run: Run, iteration: int, success: float) -> None:
    with commit_directory(
        run.step(iteration, "update"),
        kind="update",
        payload={"history": {"train/success": success}},
    ):
        pass


def measure(run: Run, name: str, **metrics: float) -> None:
    with commit_directory(run.evaluation(name), kind="evaluation", payload={"metrics": metrics}):
        pass


def test_a_run_is_training_as_long_as_a_process_is_at_work(run: Run) -> None:
    assert status_of(run.path).state == "interrupted"
    with run.session():
        assert status_of(run.path).state == "training"
    assert status_of(run.path).state == "interrupted"


def test_a_run_that_broke_says_why_until_it_goes_on(run: Run) -> None:
    with pytest.raises(RuntimeError), run.session(), closing(run):
        raise RuntimeError("the lake has thawed")
    status = status_of(run.path)
    assert (status.state, status.message) == ("failed", "the lake has thawed")
    with run.session():
        pass  # it was killed: it said nothing at its end
    assert status_of(run.path).state == "interrupted"


def test_a_run_that_was_stopped_is_not_a_failure(run: Run) -> None:
    with pytest.raises(KeyboardInterrupt), run.session(), closing(run):
        raise KeyboardInterrupt
    assert status_of(run.path).state == "interrupted"


def test_a_run_that_was_made_longer_is_not_finished_before_its_new_end(run: Run) -> None:
    for iteration in range(2):
        learn(run, iteration, 0.5)
    with commit_directory(run.registration, kind="registration", payload={"iteration": 2}):
        pass
    assert (status_of(run.path).state, status_of(run.path).iterations) == ("finished", 2)
    run.extend(3)
    assert (status_of(run.path).state, status_of(run.path).iterations) == ("interrupted", 3)


def test_the_newest_success_that_is_known_is_told(run: Run) -> None:
    def told() -> tuple:
        status = status_of(run.path)
        return status.iteration, status.start, status.newest, status.newest_of

    assert told() == (0, None, None, "")
    measure(run, "warm_start", **{"test/score": 3.0, "test/success": 0.25})
    learn(run, 0, 0.5)
    assert told() == (1, 0.25, 0.5, "train")
    measure(run, "iteration-0001", **{"val/success": 0.75})
    learn(run, 1, 0.5)
    assert told() == (2, 0.25, 0.75, "iteration-0001")
    measure(run, "final", **{"test/success": 1.0})
    assert told() == (2, 0.25, 1.0, "final")
    with commit_directory(run.registration, kind="registration"):
        pass
    assert status_of(run.path).state == "finished"


def test_the_newest_run_comes_first_and_what_is_no_run_is_left_out(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with run.session():
        pass
    later = made(tmp_path, "another")
    outputs = run.path.parent
    (outputs / "evaluations").mkdir()
    broken = made(tmp_path, "broken")
    (broken.path / "config" / "experiment.yaml").write_text("name: [")
    events = later.events
    events.write_text(json.dumps({"time": 4e9, "event": "process_started"}) + "\n")
    assert [status.name for status in list_runs(outputs)] == ["another", "one"]
    assert main(["runs", str(outputs), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["name"], second["preset"], second["iterations"]) == ("another", "vagen_full", 2)
    assert main(["runs", str(outputs)]) == 0
    assert "vagen_full" in capsys.readouterr().out


def test_a_folder_that_is_not_there_and_a_store_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", str(tmp_path / "nowhere")]) == USER_ERROR
    assert main(["runs", "s3://bucket/runs"]) == USER_ERROR
    assert "vagen store ls s3://bucket/runs" in capsys.readouterr().err
