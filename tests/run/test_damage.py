"""What is committed in a run's folder and then altered is not believed."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vagen.cli.main import USER_ERROR, main
from vagen.rollout.batch import TrajectoryBatch
from vagen.run.folder import check_folder, read_results
from vagen.run.run import Run
from vagen.stages.advantage import advantage
from vagen.stages.execute import execute
from vagen.stages.finalize import finalize
from vagen.storage import CorruptArtifact, commit_directory
from vagen.storage import manifest as manifests
from vagen.tracking import open_client
from vagen.train import train


@pytest.fixture(scope="module")
def trained(make_started_run) -> Run:
    run = make_started_run(
        "trainer.total_training_steps=2",
        "trainer.test_freq=1",
        "trainer.select=best_validation",
        model="tiny:vl",
    )
    train(run)
    return run


@contextmanager
def altered(path: Path, old: bytes = b"", new: bytes = b"") -> Iterator[None]:
    """Puts `new` for `old`, or another byte in the middle, and mends it afterwards."""
    content = path.read_bytes()
    middle = len(content) // 2
    changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    path.unlink()  # it may be shared with the step before
    path.write_bytes(content.replace(old, new) if old else changed)
    assert path.read_bytes() != content
    try:
        yield
    finally:
        path.write_bytes(content)


@pytest.mark.slow
def test_altered_results_are_not_believed(trained):
    folder = trained.evaluation("final")
    success = read_results(folder)["success"]
    results = folder / "results.json"
    before = (trained.path / "summary.json").read_bytes()
    with altered(results, f'"success": {success}'.encode(), b'"success": 0.983'):
        with pytest.raises(CorruptArtifact, match=r"results\.json is corrupt.*the step is done ag"):
            read_results(trained.fetch(folder))
        with pytest.raises(CorruptArtifact, match=r"results\.json is corrupt"):
            execute(trained, finalize)
    assert (trained.path / "summary.json").read_bytes() == before
    client = open_client(f"sqlite:///{trained.infra.output_dir}/mlflow.db")
    told = json.loads(before)["mlflow_run_id"]
    assert client.get_run(told).info.status == "FAILED", "closed, and not as a success"
    validation = trained.evaluation("iteration-0001") / "results.json"
    with altered(validation), pytest.raises(CorruptArtifact, match=r"results\.json is corrupt"):
        _ = trained.best_iteration


@pytest.mark.slow
def test_damaged_weights_are_not_evaluated(trained, capfd):
    newest = max(trained.final_iteration, 1)
    folder = trained.checkpoint(newest)
    with altered(folder / "policy" / "model.safetensors"):
        for model in (folder / "policy", *([trained.path] if newest == 1 else [])):
            assert main(["eval", str(model), "--levels", "val"]) == USER_ERROR
            (line,) = [x for x in capfd.readouterr().err.splitlines() if "is corrupt" in x]
            assert "model.safetensors" in line
        older = trained.checkpoint(newest - 1)
        with pytest.raises(CorruptArtifact, match=f"{older}, is whole: evaluate {older}/policy"):
            trained.fetch(folder)


@pytest.mark.slow
def test_another_experiment_is_not_gone_on_with(trained, capfd):
    with altered(trained.path / "config" / "experiment.yaml", b"seed: 7", b"seed: 8"):
        for command in (["resume"], ["eval", "--levels", "val"]):
            assert main([command[0], str(trained.path), *command[1:]]) == USER_ERROR
            assert "experiment.yaml was changed after the run began" in capfd.readouterr().err


@pytest.mark.slow
def test_a_judge_changes_no_token(trained):
    judged = trained.step(1, "judge")
    batch = TrajectoryBatch.load(judged)
    row = next(row for t in batch.trajectories for row in t.rows if row.loss_mask.any())
    row.rollout_logprobs[row.loss_mask] -= 1
    batch.save(judged, replace=True)
    with pytest.raises(CorruptArtifact, match=r"tokens\.parquet is not what was played"):
        advantage(trained, 1, out=trained.path / "again")


def test_a_file_is_read_once_while_nothing_is_written_to_it(tmp_path, monkeypatch):
    with commit_directory(tmp_path / "a") as partial:
        (partial / "weights").write_bytes(b"0" * 100)
    monkeypatch.setattr(manifests, "_SETTLED_NS", -(10**12))
    read = []
    digest = manifests.hashlib.file_digest
    monkeypatch.setattr(manifests.hashlib, "file_digest", lambda *a: read.append(1) or digest(*a))
    for _ in range(3):
        check_folder(tmp_path / "a")
    assert len(read) == 1
    (tmp_path / "a" / "weights").write_bytes(b"1" * 100)
    with pytest.raises(CorruptArtifact, match="weights is corrupt"):
        check_folder(tmp_path / "a")
