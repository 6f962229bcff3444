"""A training whose run is on an S3 server and whose records are in PostgreSQL, end to end.

Everything is real: OpenStack Swift, PostgreSQL, an MLflow server whose artifacts are on S3 too. The
run is killed, its folder is deleted, and it is finished and measured from the store alone.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lake import lake_yaml
from mlflow_server import MlflowServer
from postgres_server import PostgresServer
from postgres_server import missing as postgres_missing

from vagen.progress import read_events
from vagen.storage import open_store

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_steps")]


@pytest.fixture
def mlflow_server(tmp_path, bucket):
    """An MLflow server: its database in PostgreSQL, its artifacts on S3."""
    if reason := postgres_missing():
        pytest.skip(reason)
    with PostgresServer() as database:
        endpoint = {"MLFLOW_S3_ENDPOINT_URL": os.environ["AWS_ENDPOINT_URL_S3"]}
        server = MlflowServer(tmp_path, database.uri, f"{bucket}/mlflow", **endpoint)
        try:
            server.start()
            yield server.uri, database
        finally:
            server.stop()


def start(*words: str, cwd: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "vagen.cli.main", *words],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def vagen(*words: str, cwd: Path) -> str:
    process = start(*words, cwd=cwd)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def kill_in(process: "subprocess.Popen[str]", run: Path, stage: str, iteration: int) -> None:
    deadline = time.monotonic() + 240
    while not any(
        (event["event"], event.get("stage"), event.get("iteration"))
        == ("stage_started", stage, iteration)
        for event in read_events(run / "events.jsonl")
    ):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()


def test_a_run_is_trained_lost_resumed_and_measured_with_nothing_but_the_store(
    tmp_path, bucket, mlflow_server
):
    uri, database = mlflow_server
    store, run_uri = open_store(f"{bucket}/runs"), f"{bucket}/runs/lake"
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    for folder in (first, second, third):
        folder.mkdir()
    (first / "lake.yaml").write_text(lake_yaml())
    process = start(
        *("run", "lake.yaml", "--name", "lake", f"infra.store={bucket}/runs"),
        *(f"infra.mlflow_tracking_uri={uri}", "infra.threads=1"),
        cwd=first,
    )
    kill_in(process, first / "outputs" / "lake", "advantage", 1)
    keys = store.list("lake")
    assert "lake/checkpoints/0000" in keys and "lake/iterations/0001/judge" in keys
    assert "lake/iterations/0001/advantage" not in keys
    shutil.rmtree(first)

    # Another machine: what is done is not done again.
    output = vagen("resume", run_uri, cwd=second)
    run = second / "outputs" / "lake"
    assert "success, final" in output
    events = read_events(run / "events.jsonl")
    assert sum(e["event"] == "process_started" for e in events) == 2
    done = [(e["stage"], e["iteration"]) for e in events if e["event"] == "stage_finished"]
    assert done.count(("rollout", 0)) == 1 and done.count(("update", 0)) == 1
    assert not (run / "iterations" / "0000" / "rollout" / "tokens.parquet").exists()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["iterations"] == 2 and summary["model_uri"]
    assert json.loads(store.read_file("lake/summary.json") or b"") == summary
    assert {"lake/checkpoints/0001", "lake/registration"} <= set(store.list("lake"))

    # A third one measures the newest policy and shows the report.
    output = vagen("eval", run_uri, "--count", "3", cwd=third)
    assert "on 3 levels" in output
    assert len(store.list("lake/evaluations")) == 3
    report = Path(vagen("view", run_uri, "--no-open", cwd=third).strip())
    assert report.parent.name == "report" and report.stat().st_size > 10_000

    [[status]] = database.query("select status from runs where status != 'RUNNING'")
    assert status == "FINISHED"
    [[steps]] = database.query(
        "select count(distinct step) from metrics where key = 'train/success'"
    )
    assert steps == "2"
    assert database.query("select version from model_versions") == [["1"]]
    client_keys = {name.split("/")[0] for name, _ in open_store(bucket).objects()}
    assert client_keys == {"runs", "mlflow"}
