"""`vagen` commands in processes of their own, forked from one that has imported what they need.

A command's own process costs six seconds of a core for imports, which a test of forty commands
pays forty times. A forked one has nothing of the test's process or of another command's.
"""

import multiprocessing
import os
import sys
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["mlflow", "vagen.launch.here", "vagen.models.loading", "vagen.stages.update", "vagen.train"]
)


class WarmProcess:
    """A command at work; a group of processes of its own.

    >>> WarmProcess("run", "lake.yaml", cwd=folder).wait()
    0
    """

    def __init__(self, *words: str, cwd: Path):
        log = cwd / "commands.log"
        self._process = _CONTEXT.Process(target=_main, args=(words, cwd, log))
        self._log, self._begin = log, log.stat().st_size if log.exists() else 0
        self._process.start()

    @property
    def pid(self) -> int:
        """Its number, and that of its group."""
        assert self._process.pid
        return self._process.pid

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._log.read_bytes()[self._begin :].decode()

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        return self._process.exitcode

    def wait(self, timeout: float = 900) -> int:
        """Its exit code, once it has ended."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"it has not ended after {timeout} s"
        return self._process.exitcode


def _main(words: tuple[str, ...], cwd: Path, log: Path) -> None:
    os.setsid()
    os.chdir(cwd)
    with log.open("ab", buffering=0) as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    from vagen.cli.main import main

    code = main(words)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
