"""`python -m vagen.cli.trial RUN`: a sweep's training, which lives no longer than the sweep.

What ends the sweep's process, SIGKILL too, closes the pipe that is this process's input.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from vagen.cli.main import main
from vagen.storage import sole_writer

PATIENCE = 300.0
"""Seconds for an earlier process of the same training to close the run."""


def _end_with_the_sweep() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_sweep, daemon=True).start()
    with sole_writer(Path(sys.argv[1]), patience=PATIENCE):
        pass
    sys.exit(main(["resume", sys.argv[1]]))
