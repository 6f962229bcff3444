"""An HTTP application on a port of its own, in a thread of the test."""

import socket
import threading
import time
from typing import Self

import uvicorn
from fastapi import FastAPI


class ThreadedServer:
    """Runs inside the `with` block; `root` is its address."""

    def __init__(self, app: FastAPI) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.root = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.base_url = f"{self.root}/v1"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join()
