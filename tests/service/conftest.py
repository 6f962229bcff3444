"""A real service on a port of its own, and the application without one."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from vagen.config.infra import EnvironmentsConfig
from vagen.service.app import make_app
from vagen.service.settings import ServiceSettings

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Server:
    """A service in a process of its own."""

    url: str
    process: subprocess.Popen[str]

    def config(self, **options) -> EnvironmentsConfig:
        return EnvironmentsConfig(placement="service", url=self.url, **options)

    def workers(self) -> list[int]:
        """Process ids of its workers."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return sorted(int(pid) for path in children for pid in path.read_text().split())

    def metric(self, name: str) -> float:
        text = urllib.request.urlopen(f"{self.url}/metrics", timeout=10).read().decode()
        lines = [line for line in text.splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)


def start_server(*flags: str, env: dict[str, str] | None = None) -> Server:
    process = subprocess.Popen(
        [sys.executable, "-m", "vagen.service", "--port", "0", *flags],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
        | (env or {}),
    )
    assert process.stdout is not None
    url = process.stdout.readline().strip().rpartition(" ")[2]
    assert url.startswith("http://127.0.0.1:"), url
    for _ in range(300):
        try:
            if urllib.request.urlopen(f"{url}/readyz", timeout=5).status == 200:
                return Server(url, process)
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError("the service is not ready")


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Starts services; they are ended with the test."""
    servers: list[Server] = []

    def start(*flags: str, **options) -> Server:
        servers.append(start_server(*flags, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    """A service with two workers."""
    server = start_server("--workers", "2", "--idle-seconds", "600")
    yield server
    server.process.send_signal(signal.SIGTERM)
    try:
        assert server.process.wait(20) == 0, "it drains and ends"
    finally:
        server.process.kill()


@pytest.fixture
def app() -> Iterator[Callable[..., TestClient]]:
    """The application in this process, environments too; alive until the end of the test."""
    with ExitStack() as stack:

        def make(**settings) -> TestClient:
            return stack.enter_context(
                TestClient(make_app(ServiceSettings(**{"workers": 0} | settings)))
            )

        yield make
