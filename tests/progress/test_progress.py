import os
import pty
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from vagen import progress
from vagen.progress.display import Timing, clock, headline, success_of
from vagen.progress.picture import half_blocks


@pytest.fixture(autouse=True)
def closed():
    yield
    progress.close()


def work() -> None:
    progress.describe("lake", 2)
    with progress.step("warm_start"):
        pass
    with progress.step("evaluate", label="warm_start") as step:
        step.metrics["success"] = 0.25
    for iteration in range(2):
        for name in ("rollout", "judge", "advantage", "update"):
            with progress.step(name, iteration) as step:
                with progress.bar("episodes", 8) as advance:
                    for _ in range(8):
                        advance(success=0.5)
                if name == "rollout":
                    step.metrics.update(score=1.5, success=0.375)
    progress.note("the best so far")


def test_a_log_has_one_plain_line_per_step(tmp_path: Path):
    log = tmp_path / "log"
    with log.open("w") as file:
        progress.configure(tmp_path / "events.jsonl", terminal=file.fileno())
        work()
        progress.close()
    lines = log.read_text().splitlines()
    assert len(lines) == 2 + 2 * 4 + 1
    assert "\x1b" not in log.read_text()
    assert "evaluate warm_start: 0.0 s  success 0.25" in lines[1]
    assert "iteration 2/2 (0001) rollout: 0.0 s  success 0.375  score 1.5" in lines[6]
    assert lines[-1].endswith("the best so far")


def test_events_tell_every_step(tmp_path: Path):
    progress.configure(tmp_path / "events.jsonl")
    work()
    with pytest.raises(ValueError, match="no"), progress.step("register"):
        raise ValueError("no")
    events = progress.read_events(tmp_path / "events.jsonl")
    finished = [event for event in events if event["event"] == "stage_finished"]
    assert [(event["stage"], event["iteration"]) for event in finished[:3]] == [
        ("warm_start", None),
        ("evaluate", None),
        ("rollout", 0),
    ]
    assert finished[2]["metrics"] == {"score": 1.5, "success": 0.375}
    assert finished[1]["label"] == "warm_start"
    failed = events[-1]
    assert (failed["event"], failed["stage"], failed["message"]) == (
        "stage_failed",
        "register",
        "no",
    )
    times = [event["time"] for event in events]
    assert times == sorted(times)


def test_a_last_line_cut_by_a_crash_is_left_out(tmp_path: Path):
    progress.append_event(tmp_path / "events.jsonl", "one")
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"time": 1, "ev')
    assert [event["event"] for event in progress.read_events(tmp_path / "events.jsonl")] == ["one"]
    progress.configure(tmp_path / "events.jsonl")
    progress.event("two")
    assert [event["event"] for event in progress.read_events(tmp_path / "events.jsonl")] == [
        "one",
        "two",
    ]


def drawn(function) -> str:
    """What `function(descriptor)` draws on a terminal."""
    ours, theirs = pty.openpty()
    chunks: list[bytes] = []

    def read() -> None:
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:
                return
            if not chunk:
                return
            chunks.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        function(theirs)
    finally:
        os.close(theirs)
        reader.join(10)
        os.close(ours)
    return b"".join(chunks).decode()


def test_a_terminal_shows_the_bars_and_keeps_its_cursor(tmp_path: Path):
    def run(terminal: int) -> None:
        progress.configure(tmp_path / "events.jsonl", terminal=terminal)
        work()
        progress.close()

    text = drawn(run)
    assert "lake" in text and "2/2" in text
    assert "iteration 2/2 (0001)  success 0.375" in text
    assert "evaluate warm_start" in text
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")


def test_a_terminal_shows_pictures_and_a_log_their_texts(tmp_path: Path):
    frame = np.zeros((40, 40, 3), np.uint8)
    frame[:20] = 255, 0, 0
    picture = half_blocks(frame, columns=4)
    assert picture.plain == "▀▀▀▀\n▀▀▀▀\n"
    assert [str(span.style) for span in picture.spans[::4]] == [
        "rgb(255,0,0) on rgb(255,0,0)",
        "rgb(0,0,0) on rgb(0,0,0)",
    ]

    def run(terminal: int) -> None:
        progress.configure(tmp_path / "events.jsonl", terminal=terminal)
        progress.note("a level", frame)
        progress.close()

    text = drawn(run)
    assert "▀" in text and "a level" in text
    log = tmp_path / "log"
    with log.open("w") as file:
        run(file.fileno())
    assert log.read_text().count("\n") == 1 and "a level" in log.read_text()


def test_a_long_step_is_estimated_in_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    log = tmp_path / "log"
    with log.open("w") as file:
        progress.configure(terminal=file.fileno())
        with progress.step("warm_start"), progress.bar("expert batches", 10) as advance:
            for _ in range(10):
                now += 40.0
                advance(loss=0.5)
        with progress.step("rollout"), progress.bar("episodes", 100) as advance:
            now += 80.0
            advance()
        progress.close()
    lines = log.read_text().splitlines()
    assert lines.pop(-2) == "[8:00] episodes 1/100", "one in a hundred says nothing of the rest"
    lines.pop()
    assert lines[0] == "[1:20] expert batches 2/10  loss 0.5  (about 5:20 left of this step)"
    assert len(lines) == 5 and "warm_start: 400.0 s" in lines[-1]


def test_a_terminal_counts_on_where_an_earlier_attempt_stopped(tmp_path: Path):
    def run(terminal: int) -> None:
        progress.configure(tmp_path / "events.jsonl", terminal=terminal)
        progress.describe("lake", 40, done=12)
        with progress.step("build"):
            pass
        progress.close()

    text = drawn(run)
    assert "12/40" in text
    assert "/?" not in text


def test_a_terminal_that_goes_away_does_not_stop_the_work(tmp_path: Path):
    ours, theirs = pty.openpty()
    progress.configure(tmp_path / "events.jsonl", terminal=theirs)
    os.close(theirs)
    os.close(ours)
    work()
    progress.close()
    assert (
        sum(e["event"] == "stage_finished" for e in progress.read_events(tmp_path / "events.jsonl"))
        == 10
    )


def test_time_left_follows_the_last_iterations(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr("vagen.progress.display.time.monotonic", lambda: now[0])
    timing = Timing()
    timing.iterations = 4
    assert timing.remaining() is None
    for iteration in range(2):
        for name in ("rollout", "update"):
            record = progress.StepRecord(name, iteration, now[0])
            timing.begin(record)
            now[0] += 5.0
            timing.finish(record, 5.0)
    assert timing.remaining() == pytest.approx(20.0)
    record = progress.StepRecord("rollout", 2, now[0])
    timing.begin(record)
    now[0] += 4.0
    assert timing.remaining() == pytest.approx(16.0)
    timing.iterations = 3
    timing.finish(progress.StepRecord("evaluate", None, now[0]), 2.0)
    assert timing.remaining() is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (61, "1:01"), (3599.6, "1:00:00"), (7325, "2:02:05")]
)
def test_clock(seconds: float, text: str):
    assert clock(seconds) == text


def test_headline_puts_success_first_and_leaves_out_what_is_no_number():
    metrics = {"train/score": 2, "path": "x", "flag": True, "train/success": 0.5}
    assert headline(metrics) == ["success 0.5", "score 2"]
    assert headline({"critic/loss": 9.0, "actor/entropy": 1.25}) == ["entropy 1.25"]
    assert headline({"build/lake/train": 10_000, "flag": True, "b": 1.0}) == ["train 10000", "b 1"]
    assert success_of(metrics) == 0.5
    assert success_of({"score": 1}) is None
