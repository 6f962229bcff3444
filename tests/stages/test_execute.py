"""How steps are executed: once, by one process, with errors that say what can be done."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vagen.launch.step import run_in_process
from vagen.progress import read_events
from vagen.run.folder import committed
from vagen.run.run import Run
from vagen.stages import interrupts
from vagen.stages.build import build
from vagen.stages.execute import StageError, StageFailed, closing, execute
from vagen.storage import InUse, read_manifest

TRAIN = """
import sys
from vagen.run.run import Run
from vagen.train import train
from vagen.stages import interrupts
with interrupts.handle_interrupts():
    train(Run.open(sys.argv[1]))
"""


def finished(run: Run) -> list[str]:
    return [e["stage"] for e in read_events(run.events) if e["event"] == "stage_finished"]


def endings(run: Run) -> list[str]:
    return [e["status"] for e in read_events(run.events) if e["event"] == "run_ended"]


def breaks(run: Run, **_: object) -> dict:
    raise KeyError("optimizer")


def fills_the_disk(run: Run, **_: object) -> dict:
    raise RuntimeError(f"I/O error: {os.strerror(errno.ENOSPC)} (os error 28)")


def refuses(run: Run, **_: object) -> dict:
    raise StageError("level 17 cannot be solved: choose another seed")


for stage in (breaks, fills_the_disk, refuses):
    stage.__name__ = "judge"


def test_a_step_that_is_committed_is_not_done_again(make_run):
    run = make_run()
    first = run_in_process(str(run.path), "build")
    written = (run.levels / "manifest.json").stat().st_mtime_ns
    assert run_in_process(str(run.path), "build") == first
    assert (run.levels / "manifest.json").stat().st_mtime_ns == written
    assert first["sha256"] == read_manifest(run.levels).digest and first["metrics"]
    assert finished(run) == ["build"]


def test_what_cannot_be_executed_is_refused(make_run, tmp_path):
    run = make_run()
    with pytest.raises(ValueError, match="no stage is named 'fly': there are build, warm_start"):
        run_in_process(str(run.path), "fly")
    with pytest.raises(ValueError, match=r"is no run: it has no config/experiment\.yaml"):
        run_in_process(str(tmp_path), "build")


def test_errors_say_whose_they_are(make_started_run):
    run = make_started_run()
    with run.session():
        with pytest.raises(
            StageFailed, match="judge of iterations/0007 failed: KeyError: 'optimizer'"
        ):
            execute(run, breaks, iteration=7)
        with pytest.raises(StageError, match=r"is full; free some space, then `vagen resume`"):
            execute(run, fills_the_disk, iteration=7)
        with pytest.raises(StageError, match=r"^level 17 cannot be solved: choose another seed$"):
            execute(run, refuses, iteration=7)
    failed = [e for e in read_events(run.events) if e["event"] == "stage_failed"]
    assert [e["iteration"] for e in failed] == [7, 7, 7]


@pytest.mark.parametrize(
    ("error", "status"), [(StageError("x"), "FAILED"), (KeyboardInterrupt(), "KILLED")]
)
def test_a_run_is_closed_however_it_ends(make_run, error, status):
    run = make_run()
    with pytest.raises(type(error)), run.session(), closing(run):
        execute(run, build)
        raise error
    assert endings(run) == [status]
    assert run.tracker is None


def asks(then: Exception | None) -> None:
    """Ctrl-C inside of what swallows it, and maybe raises something else."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        if then is not None:
            raise then from None


@pytest.mark.parametrize("then", [None, ValueError("half imported"), OSError("half imported")])
def test_an_interrupt_that_a_library_swallows_ends_the_run(make_run, then):
    run = make_run()

    def stage(run):
        asks(then)
        return {"uri": str(run.path), "sha256": "", "metrics": {}}

    stage.__name__ = "build"
    with (
        interrupts.handle_interrupts(),
        pytest.raises(KeyboardInterrupt),
        run.session(),
        closing(run),
    ):
        execute(run, stage)
    assert endings(run) == ["KILLED"]


def test_an_interrupt_of_code_from_a_string_leaves_the_exit_code_alone(tmp_path):
    script = """
import signal, sys
from vagen.stages import interrupts
try:
    with interrupts.handle_interrupts():
        exec("signal.raise_signal(signal.SIGINT)")
except KeyboardInterrupt:
    sys.exit(130)
"""
    (tmp_path / "stopped.py").write_text(script)
    assert subprocess.run([sys.executable, "-m", "stopped"], cwd=tmp_path).returncode == 130


def test_a_run_has_one_process_at_work(make_run, monkeypatch):
    run = make_run()
    monkeypatch.setattr("vagen.storage.writer.PATIENCE", 0.2)
    with run.session(), pytest.raises(InUse, match=f"process {os.getpid()} on"), run.session():
        pass


@pytest.mark.slow
@pytest.mark.usefixtures("warm_commands")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_closes_the_run_and_leaves_nothing_behind(make_started_run, number):
    run = make_started_run()
    process = subprocess.Popen(
        [sys.executable, "-c", TRAIN, str(run.path)], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while committed(run.step(0, "rollout")) is None:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert endings(run) == ["KILLED"]
    leftovers = [path for path in Path(run.path).rglob(".*") if "partial" in path.name]
    assert leftovers == []
