"""What answers a session's requests: an open run whose stages are executed one after the other."""

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

from vagen.stages.executor import Execute, load, perform
from vagen.stages.session import LOG
from vagen.storage import storage_errors

_log = logging.getLogger("vagen.session")
_DISK_FULL = os.strerror(errno.ENOSPC)
"""How libraries that write files by themselves (safetensors, Arrow) tell it: by this text alone."""


class Responder:
    """Answers `execute` and `status`; every failure is an answer too.

    Args:
        run_dir: The run's folder.
        executor: What opens the run, see `vagen.stages.session.executor_name`.
    """

    def __init__(self, run_dir: Path, executor: str) -> None:
        self._run_dir = run_dir
        self._executor = executor
        self._execute: Execute | None = None
        self._refusal: dict[str, Any] | None = None
        self._last_failure: dict[str, str] | None = None

    def open(self) -> None:
        """Opens the run; a failure is the answer to every request."""
        try:
            self._execute = load(self._executor)(self._run_dir)
        except Exception as error:
            self._refusal = self._failure(error, "opening the run")

    def close(self) -> None:
        """Lets go of what the run holds; nothing can be answered any more."""
        close = getattr(self._execute, "close", None)
        if close is not None:
            close()
        self._execute = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to one request, both JSON-able."""
        if request["op"] == "status":
            return {"ok": True, "pid": os.getpid(), "last_failure": self._last_failure}
        if self._execute is None:
            assert self._refusal is not None
            return self._refusal
        stage, kwargs = request["stage"], request["kwargs"]
        try:
            with storage_errors(self._run_dir):
                result = perform(self._execute, stage, source=request["source"], kwargs=kwargs)
            json.dumps(result)
        except Exception as error:
            return self._failure(error, _name(stage, kwargs))
        return {"ok": True, "result": result}

    def _failure(self, error: Exception, what: str) -> dict[str, Any]:
        _log.exception("%s failed", what)
        if isinstance(error, ValueError):
            kind, message = "user", str(error)
        elif _DISK_FULL in str(error):
            kind = "user"
            message = (
                f"{what} failed: the disk of {self._run_dir} is full; free some space, then "
                "`vagen resume`: what was finished before is intact"
            )
        else:
            text = f"{type(error).__name__}: {error}".rstrip(": ")
            kind = "internal"
            message = f"{what} failed: {text}; the traceback is in {self._run_dir / LOG}"
        self._last_failure = {"kind": kind, "message": message}
        return {"ok": False, **self._last_failure}


def _name(stage: str, kwargs: dict[str, Any]) -> str:
    iteration = kwargs.get("iteration")
    return stage if iteration is None else f"{stage} of iteration {iteration}"
