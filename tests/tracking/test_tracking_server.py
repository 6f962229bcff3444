"""The same against a real MLflow server that goes away and comes back."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from vagen.tracking import Tracker, open_client

START_SECONDS = 90


class Server:
    """`mlflow server` on a free port of this machine."""

    def __init__(self, folder):
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
                *("--host", "127.0.0.1", "--port", str(self.port)),
                *("--backend-store-uri", f"sqlite:///{self.folder}/server.db"),
                *("--artifacts-destination", str(self.folder / "artifacts")),
            ],
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            try:
                with urlopen(f"{self.uri}/health", timeout=1):
                    return
            except OSError:
                time.sleep(0.2)
        raise TimeoutError("the MLflow server did not start")

    def stop(self):
        if self.process is not None:
            os.killpg(self.process.pid, 9)
            self.process.wait()
            self.process = None


@pytest.mark.slow
def test_a_server_that_is_killed_and_restarted_misses_nothing(tmp_path, monkeypatch):
    server = Server(tmp_path)
    server.start()
    try:
        run = Tracker.start(
            experiment="x", run_name="r", run_dir=tmp_path, output_dir=tmp_path, uri=server.uri
        )
        (tmp_path / "experiment.yaml").write_text("name: x")
        run.log_metrics({"success": 0.0}, 0)
        server.stop()
        began = time.monotonic()
        for step in range(1, 50):
            run.log_metrics({"success": step}, step)
        run.log_artifact(tmp_path / "experiment.yaml")
        assert time.monotonic() - began < 10, "an absent server holds training up"
        server.start()
        monkeypatch.setattr(run, "_retry_at", 0.0)
        assert run.flush()
        run.finish()
        client = open_client(server.uri)
        history = client.get_metric_history(run.run_id, "success")
        assert [m.step for m in history] == list(range(50))
        assert [a.path for a in client.list_artifacts(run.run_id)] == ["experiment.yaml"]
        assert client.get_run(run.run_id).info.status == "FINISHED"
    finally:
        server.stop()


@pytest.mark.slow
def test_two_processes_may_make_one_database_at_once(tmp_path: Path) -> None:
    code = "import sys; from vagen.tracking import open_client; open_client(sys.argv[1])"
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    processes = [
        subprocess.Popen([sys.executable, "-c", code, uri], stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
