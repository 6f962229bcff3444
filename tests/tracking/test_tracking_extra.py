"""TensorBoard and W&B beside MLflow: each step once, whatever processes tell it."""

import json
import os
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from lake import lake_yaml

from vagen.cli.main import main
from vagen.config import InfraConfig
from vagen.experiment.load import load_experiment
from vagen.run import layout
from vagen.run.run import Run
from vagen.stages.build import build
from vagen.stages.execute import execute
from vagen.stages.rollout import rollout
from vagen.stages.warm_start import warm_start
from vagen.tracking import default_uri, open_client
from vagen.tracking.extra import ExtraTracker, open_extra_tracker
from vagen.train import iterate, train


def tensorboard_series(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself reads."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        # pyrefly: ignore[not-iterable]
        for tag in events.Tags()["scalars"]
    }


def wandb_rows(run_dir: Path) -> list[dict[str, float]]:
    """Rows of W&B's own files, a file of each process after the other."""
    protocol = pytest.importorskip("wandb.proto.wandb_internal_pb2")

    rows = []
    for file in sorted(
        run_dir.glob("wandb/offline-run-*/*.wandb"), key=lambda f: f.stat().st_mtime
    ):
        for data in log_records(file.read_bytes()):
            record = protocol.Record()
            record.ParseFromString(data)
            items = record.history.item
            row = {i.key or i.nested_key[0]: json.loads(i.value_json) for i in items}
            rows += [row] if row else []
    return rows


def log_records(content: bytes) -> Iterator[bytes]:
    """Records of LevelDB's log format, which W&B's files have after a header of 7 bytes."""
    block, header, place, parts = 32_768, 7, 7, list[bytes]()
    while place + header <= len(content):
        if block - place % block < header:  # the rest of a block is padding
            place += block - place % block
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + header])
        parts.append(content[place + header : place + header + length])
        place += header + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield b"".join(parts)
            parts.clear()


def opened(name: str, folder: Path) -> ExtraTracker:
    return open_extra_tracker(name, run_dir=folder, run_name="lake-1", project="lakes")


def test_tensorboard_has_each_step_once_after_a_resume(tmp_path: Path) -> None:
    first = opened("tensorboard", tmp_path)
    first.log_config({"algorithm": {"lam": 0.95}})
    for step in range(3):
        first.log_metrics({"success": step / 4, "absent": None}, step)
    # Not finished: the process is killed.
    second = opened("tensorboard", tmp_path)
    second.log_config({"algorithm": {"lam": 0.95}})
    for step in range(5):
        second.log_metrics({"success": step / 4, "late": 1.0}, step)
    second.finish(failed=False)
    series = tensorboard_series(tmp_path / "tensorboard")
    assert series["success"] == [(step, step / 4) for step in range(5)]
    assert [step for step, _ in series["late"]] == list(range(5))
    assert "absent" not in series


@pytest.mark.slow
def test_wandb_goes_on_with_its_run_without_a_step_twice(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    for last in (2, 4):  # each in a process of its own, as a training that goes on
        code = f"""
            from test_tracking_extra import Path, opened
            tracker = opened("wandb", Path({str(tmp_path)!r}))
            tracker.log_config({{"algorithm": {{"lam": 0.95}}}})
            for step in range({last}):
                tracker.log_metrics({{"success": step / 4}}, step)
            tracker.finish(failed=False)
        """
        environment = {
            **os.environ,
            "WANDB_MODE": "offline",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        program = [sys.executable, "-c", textwrap.dedent(code)]
        subprocess.run(program, env=environment, check=True, timeout=300)
    told = [(row["iteration"], row["success"]) for row in wandb_rows(tmp_path)]
    assert told == [(step, step / 4) for step in range(4)]
    assert len({file.name for file in tmp_path.glob("wandb/offline-run-*/*.wandb")}) == 1


class Broken:
    """Its disk is full after the first row."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def config(self, tree) -> None: ...

    def metrics(self, values, step) -> None:
        if self.rows:
            raise OSError("No space left on device")
        self.rows.append(step)

    def close(self, exit_code) -> None: ...


def test_what_fails_is_told_again_by_the_next_process(tmp_path: Path, caplog) -> None:
    broken = ExtraTracker(Broken(), tmp_path / "logged.jsonl")
    for step in range(3):
        broken.log_metrics({"success": 1.0}, step)
    assert caplog.text.count("No space left on device") == 1
    sink = Broken()
    ExtraTracker(sink, tmp_path / "logged.jsonl").log_metrics({"success": 1.0}, 0)
    assert sink.rows == []
    ExtraTracker(sink, tmp_path / "logged.jsonl").log_metrics({"success": 1.0}, 1)
    assert sink.rows == [1]


def test_a_tracker_that_is_not_known_is_refused_before_a_folder_is_made(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lake.yaml").write_text(lake_yaml())
    assert main(["run", "lake.yaml", "infra.trackers=[tensorbord]"]) == 2
    assert "tensorboard" in capsys.readouterr().err
    assert not (tmp_path / "outputs").exists()


@pytest.mark.slow
def test_a_training_that_goes_on_is_one_series_in_every_tracker(make_outputs) -> None:
    outputs = make_outputs()
    (outputs / "lake.yaml").write_text(lake_yaml(test_freq=1))
    infra = InfraConfig(output_dir=str(outputs))
    run = Run.create(load_experiment(str(outputs / "lake.yaml")), infra, name="one")
    with run.session():  # without TensorBoard, and killed within the second iteration
        execute(run, build)
        execute(run, warm_start)
        iterate(run, 0, 1)
        execute(run, rollout, iteration=1)
    run.infra = infra.model_copy(update={"trackers": ("tensorboard",)})
    train(run)
    series = tensorboard_series(run.path / "tensorboard")
    client = open_client(default_uri(outputs))
    run_id = (run.path / layout.MLFLOW_RUN).read_text().strip()
    told = {
        name: [(point.step, point.value) for point in client.get_metric_history(run_id, name)]
        for name in series
    }
    for name, points in told.items():
        if not name.startswith("perf/"):  # measured by several steps of an iteration
            assert dict(series[name]) == pytest.approx(dict(points)), name
        assert len(series[name]) == len(points) == len(dict(points)), name
    assert [step for step, _ in series["train/success"]] == [0, 1]
    assert [step for step, _ in series["val/success"]] == [1]
    assert {step for step, _ in series["test/success"]} == {0, 2}
