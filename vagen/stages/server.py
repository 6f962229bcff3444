"""The session's side: one process that keeps a run open and executes stages one after the other."""

import ctypes
import faulthandler
import hmac
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vagen.stages import progress
from vagen.stages.executor import locked
from vagen.stages.responder import Responder
from vagen.stages.session import ENDPOINT, Endpoint, forget, read_endpoint
from vagen.storage import storage_errors

_log = logging.getLogger("vagen.session")
_PARENT_POLL = 0.5
_REQUEST_TIMEOUT = 10.0
_REQUEST_BYTES = 1 << 20
_SOCKET_PATH_BYTES = 100
"""The kernel's limit is 108 on Linux, 104 on macOS."""
_PR_SET_PDEATHSIG = 1


def serve(run_dir: Path, *, executor: str, parent: int, ready: int, terminal: int) -> None:
    """Serves a run until it is told to shut down or its parent dies.

    Writes `ready`, or the reason why not, as one line to the descriptor `ready`.
    """
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with(parent)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    _log.info("session of %s, process %d", run_dir, os.getpid())
    os.set_inheritable(ready, False)
    os.set_inheritable(terminal, False)
    with ExitStack() as held:
        with os.fdopen(ready, "w") as pipe:
            try:
                server = _start(run_dir, executor, held)
            except (ValueError, OSError) as error:
                pipe.write(f"{' '.join(str(error).split())}\n")
                return
            pipe.write("ready\n")
        progress.configure(run_dir, terminal=terminal)
        held.callback(progress.close)
        progress.event("session_started", pid=os.getpid())
        server.open()
        server.run()
        progress.event("session_finished", pid=os.getpid())


def _start(run_dir: Path, executor: str, held: ExitStack) -> "_Server":
    held.enter_context(locked(run_dir))
    with storage_errors(run_dir):
        if stale := read_endpoint(run_dir):
            forget(run_dir, stale)
        server = _Server(run_dir, executor)
    held.callback(server.close)
    return server


class _Server:
    """Accepts one connection at a time; a connection carries one request."""

    def __init__(self, run_dir: Path, executor: str) -> None:
        self._run_dir = run_dir
        self._responder = Responder(run_dir, executor)
        self._folder = _socket_folder()
        self._token = secrets.token_hex(16)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = str(self._folder / "s")
        self._listener.bind(path)
        self._listener.listen(16)
        _write_endpoint(run_dir, Endpoint(path, self._token, os.getpid()))

    def open(self) -> None:
        """Opens the run; a failure is the answer to every request."""
        self._responder.open()

    def run(self) -> None:
        """Serves until a `shutdown` request."""
        while True:
            connection, _ = self._listener.accept()
            with connection:
                request = self._receive(connection)
                if request is None:
                    continue
                _send(connection, self._answer(request))
                if request.get("op") == "shutdown":
                    return

    def close(self) -> None:
        """Lets the run go, stops listening and removes the socket."""
        self._responder.close()
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        (self._run_dir / ENDPOINT).unlink(missing_ok=True)

    def _receive(self, connection: socket.socket) -> dict[str, Any] | None:
        connection.settimeout(_REQUEST_TIMEOUT)
        try:
            with connection.makefile("rb") as stream:
                line = stream.readline(_REQUEST_BYTES)
            request = json.loads(line)
            token = request["token"]
        except (OSError, ValueError, KeyError, TypeError):
            _log.warning("dropped a request that cannot be read")
            return None
        connection.settimeout(None)
        if not hmac.compare_digest(str(token), self._token):
            _log.warning("dropped a request without the token")
            return None
        return request

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["op"] == "shutdown":
            return {"ok": True}
        return self._responder.answer(request)


def _send(connection: socket.socket, reply: dict[str, Any]) -> None:
    try:
        connection.sendall(json.dumps(reply).encode() + b"\n")
    except OSError:
        # The client died meanwhile; what its stage committed stays.
        _log.warning("the client went away before its answer")


def _socket_folder() -> Path:
    """A private folder with a path short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="vagen-"))
    if len(os.fsencode(folder / "s")) > _SOCKET_PATH_BYTES:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="vagen-", dir="/tmp"))
    return folder


def _write_endpoint(run_dir: Path, endpoint: Endpoint) -> None:
    content = json.dumps(
        {"socket": endpoint.socket, "token": endpoint.token, "pid": endpoint.pid}
    ).encode()
    temporary = run_dir / f".{ENDPOINT}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
    temporary.rename(run_dir / ENDPOINT)


def _die_with(parent: int) -> None:
    """Ends this process when its parent ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL)
    os.killpg(os.getpgrp(), signal.SIGKILL)
