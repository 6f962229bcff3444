"""A worker process: `python -m vagen.service.worker <descriptor of its socket> <seconds> <MiB>`.

Reads lists of calls and executes them in order until the connection is closed. A call that exceeds
the seconds or the MiB (0: no limit) fails alone. Output of environments goes to standard error.
"""

import os
import resource
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
"""Replies are sent together unless one has waited this long."""


def serve(connection: socket.socket, seconds: float) -> None:
    """Executes calls until the stream ends.

    Args:
        connection: Socket for calls and replies.
        seconds: Time limit of a call; 0 for none.
    """

    def give_up(*_: object) -> None:
        raise TimeoutError(f"it took longer than {seconds:g} s")

    signal.signal(signal.SIGALRM, give_up)
    host = Host()
    while (message := receive(connection)) is not None:
        answers: list[list[Any]] = []
        frames: list[Blob] = []
        held_since = time.monotonic()
        for number, call in message["calls"]:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            content, shown = host.answer_json(call)
            signal.setitimer(signal.ITIMER_REAL, 0)
            answers.append([number, orjson.Fragment(content), len(shown)])
            frames += shown
            if time.monotonic() - held_since > HOLD_SECONDS:
                send(connection, {"answers": answers}, frames)
                answers, frames, held_since = [], [], time.monotonic()
        if answers:
            send(connection, {"answers": answers}, frames)


def main() -> None:
    """Runs a worker with the arguments of the command line."""
    descriptor, seconds, mib = sys.argv[1:]
    if int(mib):
        limit = int(mib) << 20
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes the stream
    os.dup2(2, 1)
    with (
        socket.socket(fileno=int(descriptor)) as connection,
        suppress(BrokenPipeError, ConnectionResetError),  # the parent has gone
    ):
        serve(connection, float(seconds))


if __name__ == "__main__":
    main()
