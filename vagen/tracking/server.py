"""Connects to an MLflow server or database, checks it, and silences its messages."""

import fcntl
import logging
import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from vagen.config.base import redact
from vagen.storage import storage_errors

if TYPE_CHECKING:
    from mlflow import MlflowClient

CONNECT_TIMEOUT = 5.0
"""Connection timeout in seconds."""

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # Its queue delays every few episodes of an evaluation by two seconds.
    "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "false",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}
"""MLflow's environment variables, unless the user sets them."""
_VARIABLE = "MLFLOW_TRACKING_URI"
_ACCOUNT = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
_PORTS = {
    "http": 80,
    "https": 443,
    "postgresql": 5432,
    "mysql": 3306,
    "mariadb": 3306,
    "mssql": 1433,
}


class TrackingError(ValueError):
    """MLflow cannot be used as configured; the message says which address and what to do."""


def default_uri(output_dir: Path) -> str:
    """The SQLite database for runs without a configured server."""
    return f"sqlite:///{Path(output_dir).absolute() / 'mlflow.db'}"


def import_mlflow() -> Any:
    """The `mlflow` module with telemetry and messages disabled."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import mlflow

    for name in ("mlflow", "alembic"):
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.getEffectiveLevel(), logging.WARNING))
    return mlflow


def open_client(uri: str, *, option: str = "infra.mlflow_tracking_uri") -> "MlflowClient":
    """A client of the server or database at `uri` (the user's `option`), after a request.

    Raises:
        TrackingError: It cannot be reached, or is not MLflow.
    """
    _probe(uri, option)
    mlflow = import_mlflow()
    try:
        with _alone(uri):
            client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
            client.search_experiments(max_results=1)
    except errors() as error:
        [reason, *_] = str(error).strip().splitlines() or [repr(error)]
        fault = account_fault(error) or f"{reason}; check `{option}`"
        raise TrackingError(f"MLflow at {redact(uri)} does not work: {fault}") from error
    return client


def account_fault(error: Exception) -> str | None:
    """What the user's account lacks if the server refuses it; None for other errors.

    MLflow hides models of other accounts, but rejects a new one of the same name.
    """
    from mlflow.exceptions import MlflowException

    status = error.get_http_status_code() if isinstance(error, MlflowException) else None
    user = os.environ.get(_ACCOUNT[0])
    if status == 401:
        missing = [name for name in _ACCOUNT if not os.environ.get(name)]
        if missing:
            return f"it asks for an account: set {' and '.join(missing)}"
        return f"it refuses the user {user!r}: correct {' or '.join(_ACCOUNT)}"
    taken = user and getattr(error, "error_code", None) == "RESOURCE_ALREADY_EXISTS"
    if status == 403 or taken:
        who = f"user {user!r}" if user else "the account"
        return f"{who} needs the permission EDIT from its owner, or another name"
    return None


def errors() -> tuple[type[Exception], ...]:
    """Exceptions of MLflow's client for failures of server, database or artifact store."""
    from mlflow.exceptions import MlflowException
    from requests.exceptions import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    return (MlflowException, RequestException, SQLAlchemyError, OSError)


@contextmanager
def _alone(uri: str) -> Iterator[None]:
    """Holds a lock file next to an SQLite database: MLflow creates its tables on first use, which
    must not happen in two runs at once.
    """
    scheme, _, path = uri.partition(":///")
    folder = Path(path).parent
    if scheme != "sqlite" or not path or path == ":memory:" or not folder.is_dir():
        yield
        return
    with (folder / f".{Path(path).name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with nullcontext() if Path(path).stat().st_size else _without_disk():
            yield


@contextmanager
def _without_disk() -> Iterator[None]:
    """Disables waiting for the disk in new SQLite connections of the block. It takes seconds when
    MLflow creates its tables, which needs one transaction per version of the schema.
    """
    from sqlalchemy import Engine, event

    begun: list[sqlite3.Connection] = []

    def begin(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")
        begun.append(connection)

    event.listen(Engine, "connect", begin)
    try:
        yield
    finally:
        event.remove(Engine, "connect", begin)
        for connection in begun:
            with suppress(sqlite3.ProgrammingError):  # it is closed
                connection.execute("PRAGMA synchronous = FULL")


@contextmanager
def mlflow_at(uri: str) -> Iterator[Any]:
    """The `mlflow` module with its global addresses and their environment variable set to `uri`;
    restored afterwards.
    """
    mlflow = import_mlflow()
    before = mlflow.get_tracking_uri(), mlflow.get_registry_uri()
    variable = os.environ.get(_VARIABLE)
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    try:
        yield mlflow
    finally:
        mlflow.set_tracking_uri(before[0])
        mlflow.set_registry_uri(before[1])
        os.environ.pop(_VARIABLE, None)
        if variable is not None:
            os.environ[_VARIABLE] = variable


def _probe(uri: str, option: str) -> None:
    """Fails at once where MLflow's client would retry for minutes."""
    scheme, separator, _ = uri.partition("://")
    dialect = scheme.partition("+")[0]
    if dialect == "sqlite" and separator:
        _probe_sqlite(Path(uri.partition(":///")[2]))
        return
    if not separator or dialect not in _PORTS:
        known = ", ".join(f"{name}://" for name in sorted({*_PORTS, "sqlite"}))
        raise TrackingError(
            f"`{option}` is {redact(uri)!r}: an address of MLflow must begin with one of {known}"
        )
    parts = urlsplit(uri)
    host = parts.hostname
    if host is None or (dialect in getproxies() and not proxy_bypass(host)):
        return
    try:
        address = host, parts.port or _PORTS[dialect]
        socket.create_connection(address, timeout=CONNECT_TIMEOUT).close()
    except (OSError, ValueError) as error:
        raise TrackingError(
            f"MLflow at {redact(uri)} cannot be reached: {error}; start the server, "
            f"correct `{option}`, or give no address, to use a database next to the runs"
        ) from error


def _probe_sqlite(path: Path) -> None:
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        timeout = CONNECT_TIMEOUT
        with closing(sqlite3.connect(path, timeout=timeout, isolation_level=None)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise TrackingError(
            f"the MLflow database {path} cannot be used: {error}; check that its folder is "
            "writable and that the file is an SQLite database, or move it away"
        ) from error
