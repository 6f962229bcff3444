"""Ray in the tests: heads that hold drivers, and the Jobs API of their dashboards over HTTP."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
Plan = Callable[["Driver"], Iterator[str]]
"""What a driver prints, line by line; what it raises is its failure."""


@dataclass(eq=False)
class Driver:
    """The process of a Ray job."""

    job_id: str
    rayjob: str
    plan: Plan
    stubborn: bool = False
    """It does not end when it is told to."""
    status: str = "PENDING"
    message: str = ""
    lines: list[str] = field(default_factory=list)
    started: float = 0.0
    ended: float = 0.0
    begun_at: str = ""
    stopping: threading.Event = field(default_factory=threading.Event)
    killed: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        self.started = time.monotonic()
        self.begun_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.status = "RUNNING"
        threading.Thread(target=self._run, daemon=True).start()

    def wait(self, seconds: float = 30.0) -> None:
        """For plans: until the driver is ended from outside."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._over():
            time.sleep(0.005)

    def _over(self) -> bool:
        return self.killed.is_set() or (self.stopping.is_set() and not self.stubborn)

    def _run(self) -> None:
        final = "SUCCEEDED"
        try:
            for line in self.plan(self):
                if self._over():
                    break
                self.lines.append(line)
        except RuntimeError as error:
            tail = "\n".join(self.lines)
            final = "FAILED"
            self.message = f"{error}, last available logs (truncated to 20,000 chars):\n{tail}"
        if self._over():
            final = "STOPPED"
        self.ended = time.monotonic()
        self.status = final


class Ray:
    """The heads of all clusters; each forgets its drivers when it ends."""

    def __init__(self) -> None:
        self.heads: dict[str, dict[str, Driver]] = {}
        self.history: list[Driver] = []
        self.plans: dict[str, Plan] = {}
        """By RayJob; else `plan`."""
        self.plan: Plan = lambda _: iter(["step begins", "step ends"])
        self.stubborn = False
        self.reachable = True
        ray = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                self._answer(stop=False)

            def do_POST(self) -> None:
                self._answer(stop=True)

            def _answer(self, stop: bool) -> None:
                if not ray.reachable:
                    return
                driver = ray.find(self.path.split("/")[3])
                if driver is None:
                    self.send_error(404)
                    return
                if stop:
                    driver.stopping.set()
                body = json.dumps({"stopped": True} if stop else {"status": driver.status}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.address = f"127.0.0.1:{self._http.server_port}"
        threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def close(self) -> None:
        for driver in self.history:
            driver.killed.set()
        self._http.shutdown()
        self._http.server_close()

    def find(self, job_id: str) -> Driver | None:
        for drivers in self.heads.values():
            if job_id in drivers:
                return drivers[job_id]
        return None

    def submit(self, head: str, job_id: str, rayjob: str) -> Driver:
        plan = self.plans.get(rayjob, self.plan)
        driver = Driver(job_id, rayjob, plan, stubborn=self.stubborn)
        self.heads[head][job_id] = driver
        self.history.append(driver)
        driver.start()
        return driver

    def end_head(self, head: str) -> None:
        """A head ends, and what runs on it."""
        for driver in self.heads.pop(head, {}).values():
            if driver.status not in ENDED:
                driver.killed.set()
                driver.ended = time.monotonic()

    def overlaps(self) -> list[tuple[str, str]]:
        """Pairs of drivers of one task that ran at the same time: there must be none."""
        found = []
        for index, one in enumerate(self.history):
            for other in self.history[index + 1 :]:
                same = one.rayjob.split("-0000")[0] == other.rayjob.split("-0000")[0]
                ended = one.ended or float("inf")
                if same and other.started < ended:
                    found.append((one.rayjob, other.rayjob))
        return found
