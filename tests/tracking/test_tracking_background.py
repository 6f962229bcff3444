"""A tracker in a process of its own, on a real SQLite MLflow."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest

from vagen.stages.execute import closing
from vagen.stages.tracking import tracker_of
from vagen.storage import StorageError
from vagen.tracking import Tracker, TrackingError, default_uri, open_client
from vagen.tracking.background import BackgroundTracker

PATIENCE = 60.0


def opens(output_dir: Path, run_dir: Path):
    names = {"experiment": "tests", "run_name": "apart"}
    return partial(Tracker.start, **names, run_dir=run_dir, output_dir=output_dir)


def history(uri: str, run_id: str) -> list[tuple[int, float]]:
    points = open_client(uri).get_metric_history(run_id, "success")
    return [(point.step, point.value) for point in points]


def until(happens) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def waits_for(_: Tracker, file: Path) -> None:
    """A slow server."""
    until(file.exists)


def breaks(_: Tracker) -> None:
    raise KeyError("optimizer")


def dies(_: Tracker) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_nobody_waits_for_what_is_recorded_in_its_order(make_outputs, tmp_path) -> None:
    apart = BackgroundTracker(opens(make_outputs(), tmp_path))
    apart.tell(waits_for, tmp_path / "answered")
    apart.tell(Tracker.log_metrics, {"success": 0.5}, step=0)
    apart.tell(breaks)
    apart.tell(Tracker.log_metrics, {"success": 0.25}, step=1)
    apart.tell(Tracker.finish, "KILLED")
    (tmp_path / "answered").touch()
    uri, run_id = apart.ready()
    apart.close()
    assert history(uri, run_id) == [(0, 0.5), (1, 0.25)]
    assert open_client(uri).get_run(run_id).info.status == "KILLED"


def test_a_tracker_that_cannot_be_opened_is_told_as_it_is(tmp_path) -> None:
    (tmp_path / "mlflow.db").write_text("not a database" * 100)
    apart = BackgroundTracker(opens(tmp_path, tmp_path))
    with pytest.raises(TrackingError, match=r"mlflow\.db cannot be used"):
        apart.ready()
    apart.close()

    (tmp_path / "file").touch()
    apart = BackgroundTracker(opens(tmp_path / "file", tmp_path))
    with pytest.raises(StorageError, match="is a file, not a folder"):
        until(lambda: apart.tell(breaks))
    apart.close()


def test_a_process_that_died_ends_no_training(make_outputs, tmp_path, caplog) -> None:
    apart = BackgroundTracker(opens(make_outputs(), tmp_path))
    apart.ready()
    apart.tell(dies)
    until(lambda: apart.lost)
    apart.tell(Tracker.log_metrics, {"success": 0.5}, step=0)
    assert "log_metrics is left out" in caplog.text
    apart.close()


def test_a_run_that_is_stopped_while_mlflow_loads_is_closed_there(make_run) -> None:
    run = make_run()
    with pytest.raises(KeyboardInterrupt), run.session(), closing(run):
        tracker_of(run)
        raise KeyboardInterrupt
    found = open_client(default_uri(run.path.parent)).search_runs(["1"])
    assert [one.info.status for one in found] == ["KILLED"]


@pytest.mark.slow
def test_it_ends_with_the_process_that_it_records_for(make_outputs, tmp_path) -> None:
    script = f"""
        import time
        from test_tracking_background import Path, BackgroundTracker, opens
        apart = BackgroundTracker(opens(Path({str(make_outputs())!r}), Path({str(tmp_path)!r})))
        apart.ready()
        print(apart._worker.pid, flush=True)
        time.sleep({PATIENCE})
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    program = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        there = Path("/proc", process.stdout.readline().strip())
        assert there.exists()
        process.kill()
        until(lambda: not there.exists())
