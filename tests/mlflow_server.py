"""A real MLflow server for tests, in processes of its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

from free_ports import free_ports

_PYTHON = sys.executable
"""The real one: a test may have put another program in its place."""
_START_SECONDS = 120


class MlflowServer:
    """`mlflow server` on a free port, which stays when it is stopped and started again.

    Args:
        folder: Where its log and, by default, its database are.
        database: URI of its database.
        artifacts: Where it keeps artifacts.
        app: MLflow's app, such as `basic-auth`.
        variables: Environment variables for it.
    """

    def __init__(
        self, folder: Path, database: str = "", artifacts: str = "", app: str = "", **variables: str
    ) -> None:
        [port] = free_ports(1)
        self.uri = f"http://127.0.0.1:{port}"
        self._folder = folder
        self._words = [
            *(_PYTHON, "-m", "mlflow", "server", "--workers", "1"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--backend-store-uri", database or f"sqlite:///{folder}/server.db"),
            *("--artifacts-destination", artifacts or str(folder / "artifacts")),
            *(["--app-name", app] if app else []),
        ]
        self._variables = {**variables, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        log = self._folder / "mlflow.log"
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                self._words,
                env={**os.environ, **self._variables},
                cwd=self._folder,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        end = time.monotonic() + _START_SECONDS
        while True:
            try:
                with urlopen(f"{self.uri}/health", timeout=1):
                    return
            except OSError:
                assert self._process.poll() is None and time.monotonic() < end, log.read_text()
                time.sleep(0.2)

    def stop(self) -> None:
        """Kills it."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
