"""A real PostgreSQL server for tests, from Debian's packages."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from swift_server import free_ports

_PROGRAMS = Path("/usr/lib/postgresql")
_USER = "postgres"
"""Runs the server where the tests are root's: PostgreSQL refuses to be."""


def missing() -> str | None:
    """Why there can be no server on this machine; None if there can."""
    if not any(_PROGRAMS.glob("*/bin/postgres")):
        return "PostgreSQL is not installed: `make system-packages` (postgresql)"
    return None


class PostgresServer:
    """The server: runs inside the `with` block, with one empty database `mlflow`."""

    def __init__(self) -> None:
        [*_, newest] = sorted(_PROGRAMS.glob("*/bin"))
        self._programs = newest
        # Not below pytest's folders: those are for one user only.
        self._folder = Path(tempfile.mkdtemp(prefix="vagen-postgres-"))
        [self._port] = free_ports(1)
        self.uri = f"postgresql+psycopg2://{_USER}@127.0.0.1:{self._port}/mlflow"

    def __enter__(self) -> "PostgresServer":
        if os.geteuid() == 0:
            entry = pwd.getpwnam(_USER)
            os.chown(self._folder, entry.pw_uid, entry.pw_gid)
        data = str(self._folder / "data")
        self._call("initdb", "-D", data, "-A", "trust", "-U", _USER, "--no-sync")
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command(
                    *("postgres", "-D", data, "-h", "127.0.0.1", "-p", str(self._port)),
                    *("-k", str(self._folder), "-F"),
                ),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        where = ("-h", "127.0.0.1", "-p", str(self._port), "-U", _USER)
        deadline = time.monotonic() + 30
        while subprocess.run(self._command("pg_isready", *where), capture_output=True).returncode:
            assert time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.1)
        self._call("createdb", *where, "mlflow")
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGQUIT)
        self._process.wait(30)
        shutil.rmtree(self._folder)

    def query(self, sql: str) -> list[list[str]]:
        """Rows that a query gives, as text."""
        where = ("-h", "127.0.0.1", "-p", str(self._port), "-U", _USER, "-At", "mlflow")
        rows = self._call("psql", *where, "-c", sql)
        return [line.split("|") for line in rows.splitlines()]

    def _command(self, program: str, *words: str) -> list[str]:
        path = self._programs / program
        command = [str(path if path.exists() else program), *words]
        if os.geteuid() == 0:
            return ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups", *command]
        return command

    def _call(self, program: str, *words: str) -> str:
        return subprocess.run(
            self._command(program, *words), check=True, capture_output=True, text=True, cwd="/"
        ).stdout
