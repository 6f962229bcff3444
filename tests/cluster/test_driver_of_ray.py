"""The Ray Jobs API as Ray itself serves it: what `vagen.cluster.driver` relies on."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from vagen.cluster.driver import ENDED, _ask, _state

pytestmark = pytest.mark.slow
pytest.importorskip("ray")

TOKEN = "0123456789abcdef0123456789abcdef"


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory):
    """Address of the dashboard of a head of its own, which asks for a token."""
    gcs, http, listen, grpc, clients = free_ports(5)
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    # Ray's sockets have paths of at most 107 bytes.
    folder = f"/tmp/ray-{os.getpid()}"
    head = subprocess.Popen(
        [
            str(Path(sys.executable).with_name("ray")),
            "start",
            "--head",
            "--block",
            f"--port={gcs}",
            f"--dashboard-port={http}",
            f"--dashboard-agent-listen-port={listen}",
            f"--dashboard-agent-grpc-port={grpc}",
            f"--ray-client-server-port={clients}",
            f"--temp-dir={folder}",
            "--num-cpus=0",
            "--object-store-memory=80000000",
        ],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"127.0.0.1:{http}"
    finally:
        head.send_signal(signal.SIGTERM)
        head.wait(60)
        subprocess.run(["rm", "-rf", folder], check=True)


def job(address: str, job_id: str) -> dict:
    return {"metadata": {"name": "x"}, "status": {"jobId": job_id, "dashboardURL": address}}


def submit(address: str, job_id: str, code: str) -> None:
    entrypoint = f'{sys.executable} -c "{code}"'
    request = urllib.request.Request(
        f"http://{address}/api/jobs/",
        json.dumps({"entrypoint": entrypoint, "submission_id": job_id}).encode(),
        {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=60).close()


def await_state(address: str, job_id: str, wanted: tuple[str, ...]) -> str:
    end = time.monotonic() + 90
    while (state := _state(job(address, job_id))) not in wanted:
        assert time.monotonic() < end, state
        time.sleep(0.3)
    return str(state)


def test_states_stop_and_a_job_that_is_not_known(dashboard, monkeypatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    end = time.monotonic() + 120
    while _ask(job(dashboard, "none")) is None:
        assert time.monotonic() < end
        time.sleep(0.5)
    assert _state(job(dashboard, "none")) == ""
    submit(dashboard, "long", "import time; time.sleep(600)")
    await_state(dashboard, "long", ("RUNNING",))
    assert _ask(job(dashboard, "long"), "/stop", "POST") == {"stopped": True}
    assert await_state(dashboard, "long", ENDED) == "STOPPED"
    submit(dashboard, "bad", "raise SystemExit(3)")
    assert await_state(dashboard, "bad", ENDED) == "FAILED"
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another")
    assert _state(job(dashboard, "bad")) is None, "without the right token nobody can tell"
