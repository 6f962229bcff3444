"""Runs in a real SQLite MLflow, and what happens while it is away."""

import json
import logging
import os
import socket
import sqlite3
import string
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel
from sqlalchemy import Engine, event

from vagen.storage import StorageError
from vagen.tracking import Tracker, TrackingError, default_uri, open_client, tracker
from vagen.tracking.tracker import flatten, legal_name, legal_names


@pytest.fixture(scope="module")
def output_dir(make_outputs):
    """One database for the whole module."""
    return make_outputs()


@pytest.fixture
def started(output_dir, tmp_path):
    return Tracker.start(
        experiment="tests", run_name="run-1", run_dir=tmp_path, output_dir=output_dir
    )


def history(tracker, name):
    client = open_client(tracker.uri)
    return [(m.step, m.value) for m in client.get_metric_history(tracker.run_id, name)]


class Inner(BaseModel):
    """A section."""

    lam: float = 0.95
    betas: tuple[float, float] = (0.9, 0.999)


class Outer(BaseModel):
    """A configuration."""

    name: str = "x"
    algorithm: Inner = Inner()
    envs: dict[str, int] = {"a(1)": 2}
    nothing: None = None


def test_a_run_holds_parameters_metrics_tags_and_files(started, output_dir, tmp_path):
    (tmp_path / "experiment.yaml").write_text("name: x\n")
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "index.html").write_text("<p>")
    started.log_config(Outer())
    started.log_config({f"many.{i}": i for i in range(250)})
    started.log_metrics({"success": 0.5, "actor/loss": 1, "absent": None, "f(x)": 2.0}, step=3)
    started.log_artifact(tmp_path / "experiment.yaml", "config")
    started.log_artifact(tmp_path / "report")
    started.finish()

    client = open_client(default_uri(output_dir))
    run = client.get_run(started.run_id)
    assert run.info.status == "FINISHED" and run.info.run_name == "run-1"
    assert (
        run.data.params.items()
        >= {
            "name": "x",
            "algorithm.lam": "0.95",
            "algorithm.betas": "[0.9, 0.999]",
            "envs.a_1_": "2",
            "nothing": "null",
            "many.249": "249",
        }.items()
    )
    assert run.data.metrics == {"success": 0.5, "actor/loss": 1.0, "f_x_": 2.0}
    assert history(started, "success") == [(3, 0.5)]
    assert run.data.tags["vagen.run_dir"] == str(tmp_path)
    assert run.data.tags["version.mlflow"] and run.data.tags["version.python"]
    assert {a.path for a in client.list_artifacts(started.run_id)} == {"config", "report"}
    assert (output_dir / "mlartifacts").is_dir()
    assert not (tmp_path / "tracking_pending.jsonl").exists()


def test_the_commit_of_a_checkout_is_recorded(started):
    from pathlib import Path

    root = Path(tracker.__file__).parents[2]
    if not (root / ".git").exists():
        pytest.skip("not a git checkout")
    commit = subprocess.run(
        ["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    tags = open_client(started.uri).get_run(started.run_id).data.tags
    assert tags["mlflow.source.git.commit"] == commit.stdout.strip()


def test_a_run_that_the_environment_names_becomes_the_parent(output_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    child = Tracker.start(
        experiment="tests", run_name="child", run_dir=tmp_path, output_dir=output_dir
    )
    tags = open_client(child.uri).get_run(child.run_id).data.tags
    assert (tags["mlflow.parentRunId"], child.run_id != "0" * 32) == ("0" * 32, True)


def test_a_step_logged_again_after_a_resume_shows_once(started, output_dir, tmp_path):
    for step in range(3):
        started.log_metrics({"success": step / 10, "seconds": 1.0}, step)
    started.log_metrics({"success": 0.9}, 2)
    started.finish("FAILED")
    resumed = Tracker.attach(run_id=started.run_id, run_dir=tmp_path, output_dir=output_dir)
    client = open_client(started.uri)
    assert client.get_run(started.run_id).info.status == "RUNNING"
    resumed.log_metrics({"success": 0.9, "new": 1.0}, 2)
    resumed.log_metrics({"success": 0.3}, 3)
    assert history(resumed, "success") == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3)]
    assert history(resumed, "new") == [(2, 1.0)]


class Flaky:
    """The real client, except that `log_batch` fails while `down`."""

    def __init__(self, client):
        self.client, self.down, self.calls = client, True, 0

    def __getattr__(self, name):
        return getattr(self.client, name)

    def log_batch(self, *args, **kwargs):
        self.calls += 1
        if self.down:
            raise ConnectionError("refused")
        return self.client.log_batch(*args, **kwargs)


def test_training_goes_on_while_the_server_is_away(started, tmp_path, monkeypatch, caplog):
    server = started._client = Flaky(started._client)
    with caplog.at_level(logging.WARNING, "vagen.tracking"):
        for step in range(20):
            started.log_metrics({"success": step}, step)
    assert server.calls == 1, "a server that is away is not asked at every step"
    assert len(caplog.records) == 1 and "training goes on" in caplog.records[0].message
    assert len((tmp_path / "tracking_pending.jsonl").read_text().splitlines()) == 20

    server.down = False
    monkeypatch.setattr(started, "_retry_at", 0.0)
    started.log_metrics({"success": 20.0}, 20)
    assert history(started, "success") == [(step, float(step)) for step in range(21)]
    assert not (tmp_path / "tracking_pending.jsonl").exists()


def test_what_was_kept_back_survives_the_process(started, output_dir, tmp_path):
    started._client = Flaky(started._client)
    started.log_metrics({"success": 0.5}, 0)
    started.log_metrics({"success": 0.6}, 1)
    with (tmp_path / "tracking_pending.jsonl").open("a") as file:
        file.write('{"op": "metr')
    resumed = Tracker.attach(run_id=started.run_id, run_dir=tmp_path, output_dir=output_dir)
    resumed.log_metrics({"success": 0.7}, 1)
    resumed.log_metrics({"success": 0.8}, 2)
    assert history(resumed, "success") == [(0, 0.5), (1, 0.6), (2, 0.8)]


def test_a_record_that_mlflow_refuses_does_not_block_the_others(started, caplog):
    started.log_config({"name": "x"})
    with caplog.at_level(logging.WARNING, "vagen.tracking"):
        started.log_config({"name": "another"})
    assert "refused" in caplog.text
    started.log_metrics({"success": 1.0}, 0)
    assert history(started, "success") == [(0, 1.0)]


def test_infinite_and_missing_numbers_do_not_stop_training(started):
    started.log_metrics({"a": float("nan"), "b": float("inf"), "c": None}, 0)
    started.log_metrics({}, 1)
    metrics = open_client(started.uri).get_run(started.run_id).data.metrics
    assert set(metrics) == {"a", "b"}


def test_an_artifact_that_is_not_there_is_an_error(started, tmp_path):
    with pytest.raises(TrackingError, match=r"no .*none"):
        started.log_artifact(tmp_path / "none")


def test_a_server_that_is_not_there_is_a_clear_error_at_once(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"experiment": "x", "run_name": "x", "run_dir": tmp_path, "output_dir": tmp_path}
    for uri in (f"http://127.0.0.1:{port}", f"postgresql+psycopg2://me:secret@127.0.0.1:{port}/x"):
        with pytest.raises(TrackingError, match=r"cannot be reached.*start the server") as caught:
            Tracker.start(uri=uri, **options)
        assert "secret" not in str(caught.value)
    with pytest.raises(TrackingError, match="must begin with one of"):
        Tracker.start(uri="mlruns", **options)


def test_something_else_at_the_address_is_a_clear_error(tmp_path):
    class NotMlflow(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(404)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), NotMlflow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(TrackingError, match="does not work"):
            open_client(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def test_only_the_making_of_a_database_does_not_wait_for_the_disk(tmp_path):
    said: list[str] = []

    def heed(connection: sqlite3.Connection, _: object) -> None:
        connection.set_trace_callback(said.append)

    event.listen(Engine, "connect", heed)
    try:
        clients = [open_client(default_uri(tmp_path)) for _ in range(2)]
    finally:
        event.remove(Engine, "connect", heed)
    off, made = (said.index(f"PRAGMA synchronous = {how}") for how in ("OFF", "FULL"))
    tables = [i for i, statement in enumerate(said) if "CREATE TABLE" in statement]
    assert off < tables[0] <= tables[-1] < made
    assert not any("= OFF" in statement for statement in said[made:])
    for client in clients:
        with client._tracking_client.store.engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL


def test_a_database_that_cannot_be_used_is_a_clear_error(tmp_path):
    (tmp_path / "mlflow.db").write_text("not a database" * 100)
    with pytest.raises(TrackingError, match=r"mlflow\.db cannot be used: file is not a database"):
        open_client(default_uri(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="is a file, not a folder"):
        open_client(default_uri(tmp_path / "file"))


def test_an_unknown_run_and_a_deleted_experiment_are_clear_errors(output_dir, tmp_path):
    with pytest.raises(TrackingError, match=r"run 0123.*no such run"):
        Tracker.attach(run_id="0123", run_dir=tmp_path, output_dir=output_dir)
    client = open_client(default_uri(output_dir))
    client.delete_experiment(client.create_experiment("gone"))
    with pytest.raises(TrackingError, match="was deleted: restore it"):
        Tracker.start(experiment="gone", run_name="r", run_dir=tmp_path, output_dir=output_dir)


@pytest.mark.slow
def test_importing_the_room_is_light_and_mlflow_is_quiet(tmp_path):
    code = """
import sys, json
import vagen.tracking
early = [m for m in ("mlflow", "torch", "transformers", "pandas") if m in sys.modules]
from pathlib import Path
run = vagen.tracking.Tracker.start(experiment="x", run_name="r", run_dir=Path(sys.argv[1]),
                                   output_dir=Path(sys.argv[1]))
run.log_metrics({"a": 1.0}, 0)
run.finish()
import mlflow.telemetry.utils as telemetry
print(json.dumps([early, telemetry.is_telemetry_disabled()]))
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW")}
    environment.pop("DO_NOT_TRACK", None)
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [[], True]


@given(st.text(max_size=300))
@example(" .")
@example("a/ ./ ")
@example("..\\")
def test_every_name_becomes_legal(name):
    from mlflow.utils.validation import _validate_metric_name, _validate_param_name

    _validate_metric_name(legal_name(name))
    _validate_param_name(legal_name(name))


@given(st.dictionaries(st.text(alphabet="a/._()", max_size=4), st.integers(), max_size=8))
def test_legal_names_lose_no_value(values):
    assert sorted(legal_names(values).values()) == sorted(values.values())


def test_legal_names_are_kept():
    name = f"actor/{string.ascii_letters}-9.5_x y"
    assert legal_name(name) == name
    assert legal_names({"a(b)": 1, "a_b_": 2})["a_b_"] == 2


def test_flatten_names_leaves_by_their_path():
    assert flatten({"a": {"b": {"c": 1}, "d": []}, "e": {}, "f": "x" * 9000}) == {
        "a.b.c": "1",
        "a.d": "[]",
        "e": "{}",
        "f": flatten({"f": "x" * 9000})["f"],
    }
    assert len(flatten({"f": "x" * 9000})["f"]) <= 6000
