"""A run's session in a Ray cluster, as the steps reach it."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vagen.stages.session import SessionError, executor_name

RESPONDER = "vagen.stages.cluster_session:make_responder"


def ask(run_dir: str | Path, address: str, request: dict[str, Any]) -> dict[str, Any]:
    """Has a stage executed by the run's session, which is started if there is none.

    Raises:
        SessionError: The session ended before it answered.
    """
    from vagen.engines.verl.environment import configure
    from vagen.engines.verl.mapping import is_cpu
    from vagen.stages.run import Run

    run = Run.open(run_dir)
    variables = configure(cpu=is_cpu(run.infra))
    # Of a run in a store, the session has a folder of its own, on whatever node it is.
    place = run.mirror.uri if run.mirror is not None else run_dir
    from vagen.engines.verl import session

    try:
        return session.ask(session.attach(place, address, RESPONDER, variables), request)
    except session.SessionLost as error:
        raise SessionError(
            f"the session of {run_dir} ended during {request['stage']}: {error}; run the step "
            "again: it goes on from what is committed"
        ) from error


def end(run_dir: str | Path, address: str) -> None:
    """Ends the session of a run, if there is one, with the networks that it holds."""
    from vagen.engines.verl import session
    from vagen.stages.run import Run

    run = Run.open(run_dir)
    session.end(run.mirror.uri if run.mirror is not None else run_dir, address)


def make_responder(run: str, held: ExitStack) -> Any:
    """In the session: holds the run and reports its progress."""
    from vagen.stages import progress
    from vagen.stages.executor import locked
    from vagen.stages.mirror import restore
    from vagen.stages.responder import Responder
    from vagen.stages.routing import is_uri

    run_dir = restore(run) if is_uri(run) else Path(run)

    held.enter_context(locked(run_dir))
    progress.configure(run_dir)
    held.callback(progress.close)
    responder = Responder(run_dir, executor_name())
    held.callback(responder.close)
    return responder
