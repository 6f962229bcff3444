import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipelines.local import LOG, PipelineFailed, execute, first_open_iteration
from vagen.config.infra import InfraConfig
from vagen.config.schema import EnvSpec, ExperimentConfig, TrainerConfig
from vagen.stages import session
from vagen.stages.progress import read_events
from vagen.stages.session import StageError

HERE = Path(__file__).parent
ITERATIONS = 2


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("VAGEN_EXECUTOR", "pipeline_stages:open_run")
    return make_run(tmp_path / "a run")


def make_run(path: Path, mode="staged", test_freq=0) -> SimpleNamespace:
    path.mkdir()
    experiment = ExperimentConfig(
        name="small",
        envs={"lake": EnvSpec(env_name="FrozenLake")},
        trainer=TrainerConfig(total_training_steps=ITERATIONS, test_freq=test_freq),
    )
    return SimpleNamespace(path=path, experiment=experiment, infra=InfraConfig(mode=mode))


def finished(run) -> list[str]:
    return [
        f"{event['stage']} {event.get('label', event['iteration'])}".removesuffix(" None")
        for event in read_events(run.path)
        if event["event"] == "stage_finished"
    ]


def closings(run) -> list[str]:
    return [line.split()[0] for line in (run.path / "finalized").read_text().splitlines()]


BEFORE = ["build", "warm_start", "evaluate warm_start"]
AFTER = ["evaluate final", "register", "finalize"]


def iterations(start: int = 0) -> list[str]:
    return [
        f"{stage} {iteration}"
        for iteration in range(start, ITERATIONS)
        for stage in session.ITERATION_STAGES
    ]


def test_every_step_runs_once_and_in_order(run, capfd: pytest.CaptureFixture[str]):
    execute(run)
    assert finished(run) == BEFORE + iterations() + AFTER
    assert closings(run) == ["SUCCEEDED"]
    assert first_open_iteration(run.path) == ITERATIONS
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == len(finished(run))
    assert "finished with status" in (run.path / LOG).read_text()
    assert not (run.path / "pipeline" / ".scratch").exists()
    assert "TMPDIR" not in os.environ or ".scratch" not in os.environ["TMPDIR"]


def test_each_step_is_given_what_the_one_before_wrote(run):
    execute(run)
    log = (run.path / LOG).read_text()
    handed = (run.path / "iterations" / "0000" / "judge").as_posix()
    assert f'"source_uri": "{handed}"' in log


def test_fused_runs_the_same_steps_in_one_task(tmp_path: Path, run):
    fused = make_run(tmp_path / "fused", mode="fused", test_freq=1)
    execute(fused)
    cut = len(session.ITERATION_STAGES)
    steps = iterations()
    expected = [*BEFORE, *steps[:cut], "evaluate iteration-0001", *steps[cut:], *AFTER]
    assert finished(fused) == expected


def test_a_refusal_is_the_stage_s_own_message_and_the_run_is_closed(run, monkeypatch):
    monkeypatch.setenv("REFUSE_AT", "judge-1")
    with pytest.raises(StageError, match=r"^level 17 cannot be solved: choose another seed$"):
        execute(run)
    assert closings(run) == ["FAILED"]
    assert finished(run)[-2:] == ["rollout 1", "finalize"]
    assert not (run.path / session.ENDPOINT).exists()

    monkeypatch.delenv("REFUSE_AT")
    before = len(finished(run))
    assert first_open_iteration(run.path) == 1
    execute(run)
    assert finished(run)[before:] == BEFORE + iterations(start=1) + AFTER
    assert closings(run) == ["FAILED", "SUCCEEDED"]


def test_a_broken_step_is_named(run, monkeypatch):
    monkeypatch.setenv("BREAK_AT", "advantage-0")
    with pytest.raises(PipelineFailed, match="advantage of iteration 0 failed: RuntimeError"):
        execute(run)
    assert closings(run) == ["FAILED"]


def test_a_session_that_dies_ends_the_run_with_a_message_and_closes_it(run, monkeypatch):
    monkeypatch.setenv("DIE_AT", "update-0")
    with pytest.raises(PipelineFailed, match="killed by SIGKILL"):
        execute(run)
    assert closings(run) == ["FAILED"]
    assert not (run.path / session.ENDPOINT).exists()


def test_an_interrupt_closes_the_run_as_cancelled(run, monkeypatch):
    monkeypatch.setenv("INTERRUPT_AT", "rollout-1")
    # A shell starts what it puts into the background with interrupts ignored.
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            execute(run)
    finally:
        signal.signal(signal.SIGINT, earlier)
    assert closings(run) == ["CANCELLED"]


def test_termination_closes_the_run_too(run, monkeypatch):
    monkeypatch.setenv("TERMINATE_AT", "rollout-1")
    earlier = signal.getsignal(signal.SIGTERM)
    started = time.monotonic()
    with pytest.raises(SystemExit) as caught:
        execute(run)
    assert time.monotonic() - started < 20
    assert caught.value.code == 143
    assert closings(run) == ["CANCELLED"]
    assert signal.getsignal(signal.SIGTERM) is earlier


@pytest.mark.slow
def test_an_interpreter_whose_path_has_a_space_works(run, tmp_path: Path, monkeypatch):
    folder = tmp_path / "my projects"
    folder.mkdir()
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    execute(run)
    assert sys.executable == str(python)
    assert closings(run) == ["SUCCEEDED"]


@pytest.mark.slow
def test_killed_amid_an_iteration_it_can_be_taken_up_again(run):
    code = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_local_pipeline import make_run
from pipelines.local import execute
execute(make_run(Path(sys.argv[1])))
"""
    run.path.rmdir()
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(run.path), str(HERE)], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 30
    while not (run.path / "iterations" / "0000" / "judge").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    execute(run)
    assert first_open_iteration(run.path) == ITERATIONS
    assert closings(run) == ["SUCCEEDED"]
