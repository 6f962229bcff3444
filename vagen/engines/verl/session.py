"""A run's session inside a Ray cluster: one detached actor per run that holds the engine.

It outlives whoever asked for it. A process attaches by the run's name, has a stage executed, and
leaves; if it dies meanwhile, the stage is finished all the same, and who asks again gets its
result: stages that are committed are not executed twice. The actor executes one stage at a time.
"""

import hashlib
import importlib
import logging
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import ray

NAMESPACE = "vagen"


class Responder(Protocol):
    """What executes stages: see `vagen.stages.responder`."""

    def open(self) -> None:
        """Opens the run."""
        ...

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to one request."""
        ...


class SessionLost(RuntimeError):
    """The session's process ended before it answered."""


class _Session:
    """The actor's code."""

    def __init__(self, run_dir: str, responder: str):
        logging.basicConfig(
            level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
        module, _, name = responder.partition(":")
        self._held = ExitStack()
        self._responder: Responder = getattr(importlib.import_module(module), name)(
            run_dir, self._held
        )
        self._responder.open()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Executes a stage."""
        return self._responder.answer(request)

    def close(self) -> None:
        """Lets go of everything before the actor is ended."""
        self._held.close()


def attach(
    run_dir: str | Path, address: str, responder: str, environment: dict[str, str]
) -> ray.actor.ActorHandle:
    """The session of a run; started in the cluster if there is none.

    Args:
        run_dir: The run's folder, a path that every node sees, or its URI in a store.
        address: Of the Ray cluster.
        responder: `module:function`, called as `function(run_dir, held)` with `run_dir` as
            text: gives a `Responder`, and puts on the `ExitStack` what has to be let go at the end.
        environment: Variables of its process, see `vagen.engines.verl.environment`.
    """
    _connect(address)
    return (
        ray.remote(_Session)
        .options(
            name=_name(run_dir),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=1,
            # Restarted, it would begin anew with nobody knowing; the next `attach` does that.
            max_restarts=0,
            runtime_env={"env_vars": environment},
        )
        .remote(_place(run_dir), responder)
    )


def ask(session: ray.actor.ActorHandle, request: dict[str, Any]) -> dict[str, Any]:
    """Has a request answered.

    Raises:
        SessionLost: The session ended meanwhile.
    """
    try:
        return ray.get(session.answer.remote(request))
    except ray.exceptions.RayActorError as error:
        raise SessionLost(_reason(error)) from error


def end(run_dir: str | Path, address: str) -> None:
    """Ends the session of a run with all that it holds, if there is one."""
    _connect(address)
    try:
        session = ray.get_actor(_name(run_dir), namespace=NAMESPACE)
    except ValueError:
        return
    with suppress(ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
        ray.get(session.close.remote(), timeout=60)
    ray.kill(session)


def _connect(address: str) -> None:
    if not ray.is_initialized():
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False)


def _reason(error: Exception) -> str:
    """Why a session ended, in one line; of one that could not begin, what it raised."""
    first, *rest = str(error).strip().splitlines()
    return rest[-1].strip() if rest and "creation task" in first else first


def _place(run_dir: str | Path) -> str:
    return run_dir if isinstance(run_dir, str) and "://" in run_dir else os.path.abspath(run_dir)


def _name(run_dir: str | Path) -> str:
    """Runs of one name in different places are different runs."""
    path = _place(run_dir)
    return f"session-{os.path.basename(path)}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"
