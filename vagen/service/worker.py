"""A worker process: `python -m vagen.service.worker <file descriptor of its socket>`.

It reads lists of calls and answers them in order, until the other side is gone. Whatever an
environment prints goes to standard error.
"""

import os
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any

import orjson

from vagen.service.host import Host
from vagen.service.wire import Blob, receive, send

HOLD_SECONDS = 0.005
"""Answers are sent together unless one has waited this long."""


def serve(connection: socket.socket) -> None:
    """Answers calls until the stream ends."""
    host = Host()
    while (message := receive(connection)) is not None:
        answers: list[list[Any]] = []
        frames: list[Blob] = []
        held_since = time.monotonic()
        for number, call in message["calls"]:
            content, shown = host.answer_json(call)
            answers.append([number, orjson.Fragment(content), len(shown)])
            frames += shown
            if time.monotonic() - held_since > HOLD_SECONDS:
                send(connection, {"answers": answers}, frames)
                answers, frames, held_since = [], [], time.monotonic()
        if answers:
            send(connection, {"answers": answers}, frames)


def main() -> None:
    """Runs a worker on the socket whose descriptor is the one argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it closes the stream
    os.dup2(2, 1)
    with (
        socket.socket(fileno=int(sys.argv[1])) as connection,
        suppress(BrokenPipeError, ConnectionResetError),  # nobody waits for the answer any more
    ):
        serve(connection)


if __name__ == "__main__":
    main()
