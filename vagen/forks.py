"""Set-up of a forked process."""

import gc
import signal


def begin_fork() -> None:
    """Leaves signals and memory to the parent process.

    The parent handles Ctrl-C; SIGTERM ends the fork. Garbage collection of inherited objects would
    copy their memory.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()
