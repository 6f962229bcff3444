"""How long a run was at work."""

import pytest

from vagen import progress
from vagen.progress import reporter
from vagen.run.spent import gpu_hours, working_seconds


def events(*steps: tuple[float, str]) -> list[dict]:
    return [{"time": time, "event": name} for time, name in steps]


def test_a_pause_between_processes_is_no_work():
    one = [(10.0, "process_started"), (15.0, "stage_started"), (30.0, "stage_finished")]
    killed = [(31.0, "stage_started")]
    later = [(5000.0, "process_started"), (5004.0, "stage_started"), (5040.0, "run_ended")]
    assert working_seconds(events(*one)) == 20
    assert working_seconds(events(*one, *killed, *later)) == 21 + 40


def test_without_a_session_it_is_from_the_first_event_to_the_last():
    assert working_seconds(events((3.0, "stage_started"), (7.5, "stage_finished"))) == 4.5
    assert working_seconds([]) == 0


def test_gpus_count_while_an_engine_holds_them():
    started = {"time": 10.0, "event": "engine_started", "gpus": 8}
    trained = [(0.0, "process_started"), (10.0, "stage_started")], [(1810.0, "stage_finished")]
    closed = events((2000.0, "process_started"), (3000.0, "run_ended"))
    assert gpu_hours([*events(*trained[0]), started, *events(*trained[1]), *closed]) == 4.0
    assert gpu_hours(events(*trained[0], *trained[1])) == 0.0


def test_the_summarys_total_is_the_sum_of_processes(tmp_path, monkeypatch):
    """Through the files that a run writes."""
    clock = iter([100.0, 101.0, 104.0, 900.0, 903.0, 905.0])
    monkeypatch.setattr(reporter.time, "time", lambda: next(clock))
    path = tmp_path / "events.jsonl"
    for _ in range(2):
        progress.append_event(path, "process_started", pid=1)
        progress.append_event(path, "stage_started", stage="build", iteration=None)
        progress.append_event(path, "stage_finished", stage="build", iteration=None, seconds=2.0)
    assert working_seconds(progress.read_events(tmp_path / "events.jsonl")) == pytest.approx(4 + 5)
