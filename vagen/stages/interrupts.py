"""Ctrl-C and SIGTERM end a training, also where a library loses the exception.

Python raises `KeyboardInterrupt` at whatever it just executes. Inside a library's bare `except:`,
as there are around imports, it is swallowed or turned into another error: nothing ends then, or
the run is closed as failed. What was asked is therefore remembered until the run is closed.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_asked: int | None = None


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. Python ends itself by the signal, whatever its exit code was to be, once a plain
    `KeyboardInterrupt` has left code that was compiled from a string, as dataclasses are.
    """


@contextmanager
def handle_interrupts() -> Iterator[None]:
    """Ctrl-C raises `Interrupted`, SIGTERM `SystemExit`, and `check` does so again.

    Signals are the main thread's: in another one nothing is changed.
    """
    global _asked
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = {number: signal.signal(number, _leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        _asked = None
        for number, handler in earlier.items():
            signal.signal(number, handler)


def check() -> None:
    """Raises what a signal asked for if it has been lost on the way.

    Raises:
        Interrupted: After Ctrl-C.
        SystemExit: After SIGTERM, with code 143.
    """
    if _asked is not None:
        _leave(_asked)


def _leave(number: int, *_: Any) -> None:
    global _asked
    _asked = number
    if number == signal.SIGINT:
        raise Interrupted
    sys.exit(128 + number)
