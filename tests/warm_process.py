"""Commands in processes of their own, forked from one that has imported what they need.

A command's own process costs six seconds of a core for imports, which a test of forty commands
pays forty times. A forked one has nothing of the test's process or of another command's.
"""

import importlib
import multiprocessing
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

VAGEN = "vagen.cli.main"
LIBRARIES = (
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "mlflow.store.tracking.sqlalchemy_store",
    "vagen.launch.step",
    "vagen.models.loading",
    "vagen.train",
)
"""What a training imports, soon or late."""
_PRELOADED = {VAGEN: LIBRARIES, "benchmarks.gpu.__main__": ("warm_verl",)}
_CONTEXT = multiprocessing.get_context("forkserver")
_preload: set[str] = set()


def preload(module: str = VAGEN) -> None:
    """What will be run; for test modules, while they are imported, before any process begins."""
    _preload.update(_PRELOADED[module])
    _CONTEXT.set_forkserver_preload(sorted(_preload))


class WarmProcess:
    """A command at work; a group of processes of its own.

    >>> WarmProcess("run", "lake.yaml", cwd=folder).wait()
    0
    """

    def __init__(
        self,
        *words: str,
        cwd: Path,
        module: str = VAGEN,
        environment: Mapping[str, str] = MappingProxyType({}),
    ):
        """Begins `python -m module *words` in a folder, where what it prints is `commands.log`."""
        self._log = cwd / "commands.log"
        self._begin = self._log.stat().st_size if self._log.exists() else 0
        arguments = (module, words, cwd, self._log, sys.executable, dict(environment))
        self._process = _CONTEXT.Process(target=_main, args=arguments)
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


def _main(
    module: str,
    words: tuple[str, ...],
    cwd: Path,
    log: Path,
    python: str,
    environment: dict[str, str],
) -> None:
    os.environ.update(environment)
    os.setsid()
    os.chdir(cwd)
    with log.open("ab", buffering=0) as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    sys.argv, sys.executable = [module, *words], python
    sys.exit(importlib.import_module(module).main())
