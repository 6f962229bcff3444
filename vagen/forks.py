"""What a fork of this process does before all else."""

import gc
import signal


def begin_fork() -> None:
    """Leaves signals and memory to the process that it came from.

    Ctrl-C is the terminal's, for who asks; SIGTERM ends the fork, whatever is heeded there. Looking
    for garbage among what came with the fork would copy its memory.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()
