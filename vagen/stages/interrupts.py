"""Makes Ctrl-C and SIGTERM end a training even if a library swallows the exception.

Python raises `KeyboardInterrupt` in the code that is running. A bare `except:` of a library, as
around imports, swallows it or converts it to another error; then the training goes on, or the run
fails. So the signal is remembered until the run is closed.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_asked: int | None = None


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. Unlike a plain `KeyboardInterrupt`, it does not make Python override the exit code
    after passing through code compiled from a string, such as dataclasses.
    """


@contextmanager
def handle_interrupts() -> Iterator[None]:
    """Makes Ctrl-C raise `Interrupted` and SIGTERM `SystemExit`, and `check` repeat it.

    Does nothing outside the main thread, which alone gets signals.
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
    """Raises the exception of a signal again if it was swallowed.

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
