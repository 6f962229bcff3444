import json
import math
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vagen.stages import executor, session
from vagen.stages.progress import read_events
from vagen.stages.session import Failure, SessionError, StageError, StageFailed, call
from vagen.stages.session_process import Session
from vagen.storage import commit_directory, directory_digest, read_manifest

HERE = Path(__file__).parent
EXECUTOR = "session_stages:open_run"
CLIENT = """
import sys
from vagen.stages.session import call
call(sys.argv[1], "commit_slowly", seconds=float(sys.argv[2]))
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))


@pytest.fixture
def live(tmp_path: Path):
    with Session(tmp_path, executor=EXECUTOR) as running:
        yield running


def run_python(code: str, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_stages_run_in_one_other_process_that_keeps_its_state(live: Session, tmp_path: Path):
    first = live.call("count", iteration=3)
    second = call(str(tmp_path), "count")
    assert first["metrics"] == {"calls": 1, "iteration": 3}
    assert second["metrics"] == {"calls": 2}
    assert live.call("whoami")["pid"] == live.pid != os.getpid()


def test_numbers_that_are_not_finite_come_back(live: Session):
    assert math.isnan(live.call("whoami")["metrics"]["loss"])


def test_a_user_error_has_the_stage_s_own_message_and_the_session_goes_on(live: Session):
    with pytest.raises(StageError, match=r"^the batch /x is corrupt: run `rollout` again$"):
        live.call("refuse")
    assert live.last_failure() == Failure("user", "the batch /x is corrupt: run `rollout` again")
    assert live.call("count")["metrics"]["calls"] == 2


def test_a_broken_stage_names_its_error_and_the_log_has_the_traceback(
    live: Session, tmp_path: Path
):
    with pytest.raises(StageFailed, match=r"break of iteration 7 failed: KeyError: 'optimizer'"):
        live.call("break", iteration=7)
    log = (tmp_path / session.LOG).read_text()
    assert "Traceback" in log and "in _break" in log


def test_a_full_disk_is_told_as_such_by_whoever_meets_it(live: Session):
    with pytest.raises(StageError, match=r"is full; free some space, then `vagen resume`"):
        live.call("fill_disk")


def test_a_result_that_is_not_json_is_a_failure_of_the_stage(live: Session):
    with pytest.raises(StageFailed, match="not_json failed: TypeError"):
        live.call("not_json")


def test_a_run_that_cannot_be_opened_answers_every_call_with_the_reason(tmp_path: Path):
    with Session(tmp_path, executor="session_stages:refuse_run") as running:
        for _ in range(2):
            with pytest.raises(StageError, match=r"has no config/experiment\.yaml"):
                running.call("count")


def test_the_death_of_the_session_is_an_error_with_its_last_words(live: Session, tmp_path: Path):
    with pytest.raises(SessionError, match=r"ended during die of iteration 2") as caught:
        live.call("die", iteration=2)
    assert "allocating 90 GiB" in str(caught.value)
    failure = live.last_failure()
    assert failure and failure.kind == "internal" and "killed by SIGKILL" in failure.message
    # A step started meanwhile must not go on alone.
    with pytest.raises(SessionError):
        call(str(tmp_path), "count")


def test_leaving_it_ends_the_process_and_removes_its_traces(tmp_path: Path):
    with Session(tmp_path, executor=EXECUTOR) as running:
        pid = running.pid
        endpoint = session.read_endpoint(tmp_path)
        assert pid and endpoint
    assert not is_running(pid)
    assert not Path(endpoint.socket).parent.exists()
    assert not (tmp_path / session.ENDPOINT).exists()
    assert session.REQUIRED not in os.environ


def test_an_interrupt_ends_it_without_waiting_for_the_stage(tmp_path: Path):
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Session(tmp_path, executor=EXECUTOR) as running:
        pid = running.pid
        client = run_python(CLIENT, str(tmp_path), "60")
        assert wait_for((tmp_path / "started").exists)
        raise KeyboardInterrupt
    assert time.monotonic() - started < 10
    assert pid and not is_running(pid)
    assert client.wait(10) != 0
    assert not (tmp_path / session.ENDPOINT).exists()


def test_it_dies_with_a_parent_that_is_killed_and_the_run_can_be_taken_up_again(tmp_path: Path):
    code = """
import sys, time
from vagen.stages.session_process import Session
with Session(sys.argv[1], executor=sys.argv[2]) as running:
    print(running.pid, flush=True)
    time.sleep(60)
"""
    parent = run_python(code, str(tmp_path), EXECUTOR)
    assert parent.stdout
    pid = int(parent.stdout.readline())
    stale = session.read_endpoint(tmp_path)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_for(lambda: not is_running(pid), 5)
    with Session(tmp_path, executor=EXECUTOR) as running:
        assert running.call("count")["metrics"]["calls"] == 1
    assert stale and not Path(stale.socket).parent.exists()


def test_a_stage_whose_client_is_killed_is_finished(live: Session, tmp_path: Path):
    client = run_python(CLIENT, str(tmp_path), "1")
    assert wait_for((tmp_path / "started").exists)
    client.kill()
    client.wait()
    assert live.call("count")["metrics"]["calls"] == 2
    assert (tmp_path / "committed").exists()


def test_a_second_session_on_the_same_run_is_refused(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(executor, "_LOCK_TIMEOUT", 0.2)
    with Session(tmp_path, executor=EXECUTOR) as running:
        with (
            pytest.raises(StageError, match="in use by another process"),
            executor.locked(tmp_path),
        ):
            pass
        assert running.call("count")


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path):
    with pytest.raises(StageError, match="does not exist"), Session(tmp_path / "nowhere"):
        pass
    with pytest.raises(StageError, match="does not exist"):
        call(str(tmp_path / "nowhere"), "rollout")


def test_an_executor_that_cannot_be_imported_is_reported(tmp_path: Path):
    with (
        Session(tmp_path, executor="no_such_module:open_run") as running,
        pytest.raises(StageFailed, match="no_such_module"),
    ):
        running.call("count")


def test_requests_without_the_token_are_dropped(live: Session, tmp_path: Path):
    endpoint = session.read_endpoint(tmp_path)
    assert endpoint
    assert stat.S_IMODE((tmp_path / session.ENDPOINT).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(endpoint.socket).parent.stat().st_mode) == 0o700
    shutdown = json.dumps({"op": "shutdown", "token": "0" * 32})
    for line in (shutdown, '{"op": "shutdown"}', "[]", "not json", "\x80"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(endpoint.socket)
            connection.sendall(line.encode("latin-1") + b"\n")
            assert connection.recv(10) == b""
    assert live.call("count")["metrics"]["calls"] == 1


def test_a_source_that_is_not_what_was_handed_on_is_refused(live: Session, tmp_path: Path):
    source = tmp_path / "iterations" / "0000" / "rollout"
    source.parent.mkdir(parents=True)
    with commit_directory(source, kind="test") as folder:
        (folder / "data").write_text("x")
    right = directory_digest(read_manifest(source))
    assert live.call("count", source_uri=str(source), source_sha256=right)
    with pytest.raises(StageError, match="is not what the step before wrote"):
        live.call("count", source_uri=str(source), source_sha256="0" * 64)


def test_iterations_run_all_their_stages_in_order(live: Session, tmp_path: Path):
    session.iterate(str(tmp_path), 1, 3)
    done = [
        (event["iteration"], event["stage"])
        for event in read_events(tmp_path)
        if event["event"] == "stage_finished"
    ]
    assert done == [(i, stage) for i in (1, 2) for stage in session.ITERATION_STAGES]


def test_a_single_import_stays_light():
    process = run_python("import sys, vagen.stages.session; print(*sys.modules)")
    loaded = set(process.communicate()[0].split())
    heavy = {"torch", "transformers", "mlflow", "kfp", "pyarrow", "rich", "numpy", "pydantic"}
    assert "vagen.stages.session" in loaded
    assert not heavy & loaded
