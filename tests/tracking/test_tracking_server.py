"""The same against a real MLflow server that goes away and comes back."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow_server import MlflowServer

from vagen.tracking import Tracker, open_client


@pytest.mark.slow
def test_a_server_that_is_killed_and_restarted_misses_nothing(tmp_path, monkeypatch):
    server = MlflowServer(tmp_path)
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
