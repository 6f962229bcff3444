"""Several processes that serve one model, behind one address.

A conversation stays with the process that had its first question, and a session with the one that
opened it: their caches and sampled ids are there. A process that dies is replaced.
"""

import asyncio
import hashlib
import multiprocessing
import os
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import orjson
import uvicorn
from fastapi import FastAPI, Request, Response
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from vagen.serve.app import Server, ServeSettings, gone, make_app, problem, refusal
from vagen.serve.model import REMEMBERED
from vagen.service.limits import ClientTokens, Intake

MakeServer = Callable[[int], Server]
"""Makes the server of the worker with this number, in its process; is pickled."""
_LOOK_SECONDS = 0.2
_PAUSE_SECONDS = 5.0
_CONNECTION = (b"connection", b"keep-alive", b"transfer-encoding", b"date")
"""Headers of one connection."""


class WorkerError(ValueError):
    """A worker has ended; its error is printed."""


def _work(make: MakeServer, number: int, path: str) -> None:
    """Serves on a socket until the parent ends."""
    os.setsid()  # a terminal's interrupt is the parent's

    def end_with_parent() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            wait([parent.sentinel])
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()
    config = uvicorn.Config(
        make_app(make(number)),
        uds=path,
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=60,
    )
    uvicorn.Server(config).run()


class Worker:
    """One process."""

    def __init__(self, make: MakeServer, number: int, folder: Path) -> None:
        """Starts it."""
        self.number, self.ready, self.busy, self.used = number, False, 0, 0.0
        """`busy` counts requests without a whole answer; `used` is when the last one came."""
        path = str(folder / str(number))
        limits = httpx.Limits(max_connections=None, keepalive_expiry=30)
        self._transport: dict[str, Any] = {"uds": path, "limits": limits}
        self.http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(**self._transport),
            base_url="http://worker",
            timeout=None,
        )
        self._arguments = make, number, path
        self.start()

    def start(self) -> None:
        """Starts the process, or another after it."""
        spawn = multiprocessing.get_context("spawn")
        self.process = spawn.Process(target=_work, args=self._arguments, daemon=True)
        self.process.start()

    def answers(self) -> bool:
        """Whether it serves by now.

        Raises:
            WorkerError: It has ended.
        """
        if not self.process.is_alive():
            raise WorkerError(
                f"worker {self.number} ended ({self.process.exitcode}); its error is above"
            )
        with (
            suppress(httpx.TransportError),
            httpx.Client(transport=httpx.HTTPTransport(**self._transport)) as http,
        ):
            self.ready = http.get("http://worker/health", timeout=1).status_code == 200
        return self.ready

    async def keep(self) -> None:
        """Replaces the process whenever it dies."""
        while True:
            try:
                if not self.ready:
                    await asyncio.to_thread(self.answers)
                self.ready = self.ready and self.process.is_alive()
            except WorkerError as error:
                print(f"{error}: starting another", flush=True)
                await asyncio.sleep(_PAUSE_SECONDS)
                self.start()
            await asyncio.sleep(_LOOK_SECONDS)


class Workers:
    """All processes, and which conversation is where."""

    def __init__(self, make: MakeServer, number: int) -> None:
        """Starts them, and waits until they serve.

        Raises:
            WorkerError: One has ended.
        """
        self._folder = TemporaryDirectory(prefix="vagen-serve-")  # its owner's alone
        self.all = [Worker(make, each, Path(self._folder.name)) for each in range(number)]
        self._places: OrderedDict[bytes, Worker] = OrderedDict()
        try:
            while not all(worker.answers() for worker in self.all):
                time.sleep(_LOOK_SECONDS)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends them."""
        for worker in self.all:
            worker.process.terminate()
        for worker in self.all:
            worker.process.join()
        self._folder.cleanup()

    def choose(self, path: str, body: bytes) -> Worker:
        """The worker for a request."""
        free = min(self.all, key=lambda worker: (not worker.ready, worker.busy, worker.used))
        order: Any = None
        with suppress(orjson.JSONDecodeError):
            order = orjson.loads(body)
        if not isinstance(order, dict):
            return free
        number, _, key = str(order.get("session")).partition(".")
        if key and number.isdecimal() and int(number) < len(self.all):
            return self.all[int(number)]
        messages = order.get("messages")
        if path == "/v1/chat/completions" and isinstance(messages, list):
            roles = [each.get("role") if isinstance(each, dict) else None for each in messages]
            first = roles.index("user") + 1 if "user" in roles else 1
            place = hashlib.sha256(orjson.dumps(messages[:first])).digest()
            if (worker := self._places.pop(place, free)).ready:
                free = worker
            self._places[place] = free
            if len(self._places) > REMEMBERED:
                self._places.popitem(last=False)
        return free

    async def metrics(self) -> Response:
        """The metrics of all, with the label `worker`."""
        families: dict[str, Metric] = {}
        for worker in self.all:
            text = ""
            with suppress(httpx.TransportError):
                text = (await worker.http.get("/metrics", timeout=5)).text
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    sample.labels["worker"] = str(worker.number)
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples += family.samples

        class Collected:
            def collect(self) -> list[Metric]:
                return [*families.values()]

        return Response(generate_latest(Collected()), media_type="text/plain; version=0.0.4")

    async def forward(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI application: the answer of a worker, until the client leaves."""
        body = await Request(scope, receive).body()
        worker = self.choose(scope["path"], body)
        worker.busy, worker.used = worker.busy + 1, time.monotonic()
        answering = asyncio.ensure_future(_pass(worker, body, scope, receive, send))
        leaving = asyncio.ensure_future(gone(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            worker.busy -= 1
            answering.cancel()
            leaving.cancel()


async def _pass(worker: Worker, body: bytes, scope: Any, receive: Any, send: Any) -> None:
    url = httpx.URL(path=scope["path"], query=scope["query_string"])
    headers = [
        pair for pair in scope["headers"] if pair[0] not in (*_CONNECTION, b"content-length")
    ]
    begun = False
    try:
        async with worker.http.stream(
            scope["method"], url, headers=headers, content=body
        ) as answer:
            begun = True
            headers = [pair for pair in answer.headers.raw if pair[0].lower() not in _CONNECTION]
            start = {"type": "http.response.start", "status": answer.status_code}
            await send({**start, "headers": headers})
            async for part in answer.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    except httpx.TransportError:
        if begun:
            raise
        await refusal(503, "this worker has ended: try again")(scope, receive, send)


def make_front(workers: Workers, settings: ServeSettings, token: str | None = None) -> FastAPI:
    """The application in front of workers; ends them with it.

    Args:
        workers: The workers.
        settings: Limits, and the file of tokens.
        token: The only token, unless there is such a file; None for none.

    Raises:
        TokenError: The token or the file cannot be used.
    """
    tokens = ClientTokens(settings.tokens_file, token)

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        keeping = [asyncio.ensure_future(worker.keep()) for worker in workers.all]
        yield
        for task in keeping:
            task.cancel()
        await asyncio.to_thread(workers.close)

    app = FastAPI(lifespan=running, openapi_url=None)
    app.get("/metrics")(workers.metrics)
    app.mount("/", workers.forward)
    app.add_middleware(
        Intake,
        settings=settings,
        is_known=lambda header: tokens.client(header) is not None,
        problem=problem,
    )
    return app
