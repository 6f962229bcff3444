"""How long a run was at work."""

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
