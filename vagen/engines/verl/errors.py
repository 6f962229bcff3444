"""Failures of processes in the cluster, as clear errors in the driving process."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

ANSWER_SECONDS = 10.0
"""Timeout of a liveness check; a process that waits for a dead rank never answers."""
ADVICE = "the engine cannot be used; start again: the run goes on from its last checkpoint"


class EngineLost(RuntimeError):
    """A part of the distributed engine died or failed; only files on disk are left."""


class ProcessDied(EngineLost):
    """A process of the distributed engine, or its node, is gone; the run did not cause it."""


class RolloutError(RuntimeError):
    """An episode could not be played, and its environment is not the cause."""


@dataclass(frozen=True, slots=True)
class ProcessLocation:
    """Node and log file of a process."""

    node: str
    """Address of the node."""
    pid: int
    log: str
    """The process's log file on the node."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.node}, log {self.log}"


class EngineProcesses:
    """The processes of an engine by readable names (`rank 1`)."""

    def __init__(self, actors: Mapping[str, Any]):
        """Gets the location of every process.

        Args:
            actors: Ray actors by name.
        """
        self._actors = dict(actors)
        calls = [a.__ray_call__.remote(_place) for a in self._actors.values()]
        places = ray.get(calls) if calls else []
        self.places: dict[str, ProcessLocation] = dict(zip(self._actors, places, strict=True))
        self._lost: str | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Guards calls of the processes: after an error the ranks are out of step.

        Raises:
            EngineLost: A process died or failed, in the block or in an earlier one.
            OSError: A process could not write or read a file.
            RolloutError: An episode could not be played; every process lives.
        """
        if self._lost is not None:
            raise EngineLost(self._lost)
        try:
            yield
        except (RayError, RolloutError) as error:
            dead = self._dead()
            if isinstance(error, RolloutError) and not dead:
                raise
            self._lost = self._dead_message(dead) if dead else self._message(error)
            cause = getattr(error, "cause", None)
            if isinstance(cause, OSError) and cause.errno is not None and not dead:
                raise OSError(cause.errno, cause.strerror, cause.filename) from error
            raise (ProcessDied if dead else EngineLost)(self._lost) from error

    def _dead(self) -> list[str]:
        """Names of dead processes."""
        answers = {actor.__ray_ready__.remote(): name for name, actor in self._actors.items()}
        ready, _ = ray.wait(list(answers), num_returns=len(answers), timeout=ANSWER_SECONDS)
        dead = []
        for answer in ready:
            try:
                ray.get(answer)
            except RayActorError:
                dead.append(answers[answer])
        return [name for name in self._actors if name in dead]

    def _dead_message(self, dead: list[str]) -> str:
        who = "; ".join(f"{name} died ({self.places[name]})" for name in dead)
        return (
            f"{who}: a log that ends without a reason means that it was killed, often for lack of "
            f"memory; {ADVICE}"
        )

    def _message(self, error: Any) -> str:
        if not isinstance(error, RayTaskError):
            return f"Ray failed: {_line(error)}; {ADVICE}"
        cause = error.cause
        # `ray.get` raises a subclass of the cause's class, which has the location only in its text.
        found = re.search(r"pid=(\d+), ip=([^,)]+)", str(error))
        at = (int(found[1]), found[2]) if found else None
        names = [name for name, place in self.places.items() if (place.pid, place.node) == at]
        who = f"{names[0]} ({self.places[names[0]]})" if names else "a process of the cluster"
        return f"{who} failed: {type(cause).__name__}: {_line(cause)}; {ADVICE}"


def _place(actor: Any) -> ProcessLocation:
    """Runs in the process: Ray redirects its standard error to a file."""
    stderr = Path("/proc/self/fd/2")
    log = os.readlink(stderr) if stderr.exists() else "among Ray's logs"
    return ProcessLocation(ray.util.get_node_ip_address(), os.getpid(), log)


def _line(error: BaseException | None) -> str:
    text = str(error).strip()
    return text.splitlines()[-1] if text else "no reason given"
