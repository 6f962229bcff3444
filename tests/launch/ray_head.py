"""A real Ray head with token authentication, on ports and in a folder of its own."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from free_ports import free_ports

from vagen.cluster import Dashboard
from vagen.launch.protocol import Lost
from vagen.launch.ray_job import Patience, RayJobs

TOKEN = "0123456789abcdef0123456789abcdef"
PATIENCE = Patience(
    look=1.0, reconnect=0.3, unreachable=15.0, stop=30.0, backoff=0.5, longest_backoff=2.0
)


class RayHead:
    """`ray start --head`; may be killed and started anew on the same ports.

    Args:
        scratch: Folder for the runs that are performed on it.
        warm: What `warm_workers` yields.
    """

    def __init__(self, scratch: Path, warm: Path) -> None:
        self.scratch, self._warm = scratch, str(warm)
        names = ("port", "dashboard-port", "dashboard-agent-listen-port")
        names += ("dashboard-agent-grpc-port", "ray-client-server-port", "metrics-export-port")
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        binaries = str(Path(sys.executable).parent)
        self._environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": TOKEN,
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": os.pathsep.join([binaries, os.environ["PATH"]]),
            "VAGEN_SCRATCH": str(scratch),
        }
        self.dashboard = Dashboard(f"http://127.0.0.1:{self._ports['dashboard-port']}", TOKEN)
        self.metrics = f"http://127.0.0.1:{self._ports['metrics-export-port']}/metrics"
        self.start()

    def start(self) -> None:
        """Starts the head, and waits until it takes jobs."""
        # Ray's sockets have paths of at most 107 bytes.
        self._folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        self._process = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("ray")),
                *("start", "--head", "--block", "--num-cpus=4"),
                *(f"--{name}={port}" for name, port in self._ports.items()),
                f"--temp-dir={self._folder}",
                "--object-store-memory=80000000",
            ],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + 300
        while True:
            try:
                RayJobs(self.dashboard, PATIENCE).newest()
                return
            except Lost:
                assert time.monotonic() < end and self._process.poll() is None
                time.sleep(0.3)

    def kill(self) -> None:
        """Ends the head and all that runs on it, without a word."""
        for process in [self._process.pid, *self.processes()]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait(30)
        shutil.rmtree(self._folder, ignore_errors=True)

    def end_actors(self) -> None:
        """Ends what runs have left on it."""
        for process in self.processes("ray::ResidentActor"):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def processes(self, words: str = "") -> list[int]:
        """Processes of this head whose command line has these words."""
        return [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and words in _command(entry) and self._belongs(entry)
        ]

    def _belongs(self, process: Path) -> bool:
        """Whether a process or one above it names this head's folder, or is a fork for it."""
        while process.name not in ("0", "proc"):  # `proc`: it has ended
            if self._folder in _command(process):
                return True
            # Workers write their titles over what they were started with.
            parent = re.search(r"^PPid:\s*(\d+)", _read(process / "status"), re.MULTILINE)
            process = Path("/proc", parent[1] if parent else "")
            if self._warm in _command(process):
                return True
        return False


def poll(test: Callable[[], Any], seconds: float) -> Any:
    """What a test gives as soon as that is true; after so many seconds, what it gives then."""
    end = time.monotonic() + seconds
    while not (found := test()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def await_true(test: Callable[[], Any]) -> Any:
    found = poll(test, 300)
    assert found
    return found


class Background(threading.Thread):
    """Calls something, and keeps what comes of it."""

    def __init__(self, call: Callable[..., Any], *words: Any, **more: Any) -> None:
        super().__init__(daemon=True)
        self._call = lambda: call(*words, **more)
        self.outcome: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.outcome = self._call()
        except Exception as error:
            self.outcome = error

    def result(self) -> Any:
        """What it returned or raised."""
        self.join(900)
        return self.outcome


def in_warm_start(head: RayHead, run: Any, asked: Background) -> Background:
    """Waits until the warm start of a run is under way in its actor."""
    folder = head.scratch / run.name
    await_true(lambda: asked.outcome or list(folder.glob(".*warm_start*")))
    assert asked.outcome is None, asked.outcome
    return asked


def _command(process: Path) -> str:
    return _read(process / "cmdline").replace("\0", " ")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it has ended
        return ""
