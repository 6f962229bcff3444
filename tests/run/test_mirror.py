"""A run is in its store as it is in its folder, and can be taken up from there."""

import json
import shutil
from pathlib import Path

import pytest

from vagen.config import ConfigError
from vagen.experiment.load import load_infra
from vagen.launch.step import run_in_process
from vagen.run.mirror import restore
from vagen.run.run import Run
from vagen.storage import (
    CorruptArtifact,
    LocalStore,
    StorageError,
    Superseded,
    commit_directory,
    read_manifest,
    verify_directory,
)


@pytest.fixture
def new_run(tmp_path, make_experiment):
    def make(name: str = "lake", store: Path | None = None) -> Run:
        overrides = [f"output_dir={tmp_path / 'outputs'}"]
        overrides.append(f"store={(store or tmp_path / 'store').as_uri()}")
        return Run.create(make_experiment(), load_infra(None, overrides), name)

    return make


@pytest.fixture
def run(new_run) -> Run:
    return new_run()


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Opens a run from its URI in a fresh folder, as on another machine."""
    count = 0

    def take_up(run: Run) -> Run:
        nonlocal count
        count += 1
        with monkeypatch.context() as patch:
            patch.setenv("VAGEN_SCRATCH", str(tmp_path / f"machine-{count}"))
            other = Run.open(run.mirror.uri)
        assert other.path.is_relative_to(tmp_path / f"machine-{count}")
        return other

    return take_up


def commit(folder: Path, by: str = "first", **payload: object) -> Path:
    with commit_directory(folder, payload={"by": by, **payload}, replace=True) as partial:
        (partial / "data").write_text(f"{folder.name} {by}")
    return folder


def iteration(run: Run, number: int, by: str = "first", stages: int = 5) -> None:
    folders = [run.step(number, name) for name in ("rollout", "judge", "advantage")]
    for folder in [*folders, run.checkpoint(number), run.step(number, "update")][:stages]:
        commit(folder, by)


def stored(run: Run) -> list[str]:
    keys = LocalStore(run.path.parents[1] / "store").list(run.name)
    return [key.removeprefix(f"{run.name}/") for key in keys]


def by(run: Run, folder: Path) -> str:
    return read_manifest(folder).payload["by"]


def test_what_a_run_commits_is_in_the_store_and_what_it_prunes_is_not(run):
    commit(run.levels)
    run.mirror.begin()
    assert stored(run) == ["levels"]
    iteration(run, 0)
    iteration(run, 1)
    commit(run.evaluation("final"))
    run.mirror.push()
    assert len(stored(run)) == 12
    shutil.rmtree(run.checkpoint(0))
    run.mirror.push()
    assert "checkpoints/0000" not in stored(run) and len(stored(run)) == 11
    commit(run.checkpoint(1), "again")
    run.mirror.push()
    fetched = LocalStore(run.path.parents[1] / "store").fetch_directory(
        f"{run.name}/checkpoints/0001", run.path.parent / "fetched"
    )
    assert (fetched / "data").read_text() == "0001 again"


def test_a_checkpoint_is_there_before_the_update_that_names_it(run, monkeypatch):
    commit(run.levels)
    run.mirror.begin()
    iteration(run, 0)
    iteration(run, 1)
    put: list[str] = []
    monkeypatch.setattr(
        LocalStore, "put_directory", lambda self, source, key, **_: put.append(key.split("/", 1)[1])
    )
    run.mirror.push()
    one = ["rollout", "judge", "advantage"]
    assert put == [
        *(f"iterations/0000/{name}" for name in one),
        *("checkpoints/0000", "iterations/0000/update"),
        *(f"iterations/0001/{name}" for name in one),
        *("checkpoints/0001", "iterations/0001/update"),
    ]


def test_what_another_thread_puts_there_is_left_to_it(run, monkeypatch):
    commit(run.levels)
    run.mirror.begin()
    iteration(run, 0)
    with run.mirror.put_after(run.checkpoint(0)):
        run.mirror.push()
        assert "checkpoints/0000" not in stored(run) and "iterations/0000/update" in stored(run)
    assert "checkpoints/0000" in stored(run)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put_directory", refuse)
        with (
            pytest.raises(StorageError, match="the store is full"),
            run.mirror.put_after(run.checkpoint(1)),
        ):
            commit(run.checkpoint(1))
    assert "checkpoints/0001" not in stored(run)
    run.mirror.push()
    assert "checkpoints/0001" in stored(run)


def test_elsewhere_manifests_are_there_at_once_and_contents_when_asked_for(
    run, elsewhere, tmp_path
):
    commit(run.levels)
    run.mirror.begin()
    iteration(run, 0, stages=5)
    commit(run.step(1, "rollout"))
    with (run.path / "events.jsonl").open("a") as file:
        file.write('{"event": "x"}\n')
    run.mirror.push()
    # What others keep beside a run's own folders is not the run's.
    LocalStore(tmp_path / "store").put_directory(run.levels, "lake/logs/1")
    other = elsewhere(run)
    (other.path / "events.jsonl").write_text('{"event": "y"}\n')
    for _ in range(2):
        other.mirror.pull()
    assert other.experiment == run.experiment
    assert by(other, other.step(0, "update")) == "first"
    assert other.stop is None
    assert (other.path / "events.jsonl").read_text() == '{"event": "x"}\n{"event": "y"}\n'
    assert not (other.path / "logs").exists()
    folder = other.checkpoint(0)
    assert [path.name for path in folder.iterdir()] == ["manifest.json"]
    with pytest.raises(CorruptArtifact, match="data is missing"):
        verify_directory(folder)
    assert (other.fetch(folder) / "data").read_text() == "0000 first"
    assert verify_directory(folder) == read_manifest(run.checkpoint(0))
    assert other.fetch(other.checkpoint(7)) == other.checkpoint(7)


def test_a_part_is_fetched_alone(run, elsewhere):
    with commit_directory(run.checkpoint(0)) as partial:
        for name in ("policy", "actor"):
            (partial / name).mkdir()
            (partial / name / "weights").write_text(name)
    run.mirror.begin()
    other = elsewhere(run)
    other.mirror.pull()
    folder = other.checkpoint(0)
    assert other.newest_policy() == str(folder / "policy")
    assert verify_directory(folder, "policy") and not (folder / "actor").exists()
    with pytest.raises(CorruptArtifact, match="actor/weights is missing"):
        verify_directory(folder)
    verify_directory(other.fetch(folder))


def test_contents_that_changed_in_the_store_are_refused(run, elsewhere):
    commit(run.levels)
    run.mirror.begin()
    other = elsewhere(run)
    other.mirror.pull()
    (run.path.parents[1] / "store" / run.name / "levels" / "data").write_text("other")
    with pytest.raises(CorruptArtifact, match="data is corrupt"):
        other.fetch(other.levels)
    assert [path.name for path in other.levels.iterdir()] == ["manifest.json"]


def test_of_two_attempts_the_newer_one_writes(run, elsewhere):
    commit(run.levels)
    run.mirror.begin()
    iteration(run, 0)
    run.mirror.push()
    iteration(run, 1, stages=2)  # the older attempt has not put this there yet
    other = elsewhere(run)
    other.mirror.begin()
    iteration(other, 1, "second", stages=3)
    other.mirror.push()
    for write in (run.mirror.push, lambda: (commit(run.evaluation("x")), run.mirror.push())):
        with pytest.raises(Superseded, match=r"a newer attempt .* took it over; leave the work"):
            write()
    shutil.rmtree(run.checkpoint(0))
    with pytest.raises(Superseded):
        run.mirror.push()
    (run.path / "events.jsonl").write_text("{}\n")
    with pytest.raises(Superseded):
        run.mirror.push_files()
    assert "checkpoints/0000" in stored(run) and "evaluations/x" not in stored(run)
    assert LocalStore(run.path.parents[1] / "store").read_file("lake/events.jsonl") is None
    assert by(run, run.path.parents[1] / "store/lake/iterations/0001/judge") == "second"

    # With its next stage it goes on from what the newer one did, and puts its own aside.
    commit(run.step(2, "rollout"))
    assert run.mirror.begin()
    assert by(run, run.step(1, "judge")) == "second"
    assert by(run, run.step(1, "advantage")) == "second"
    assert not run.step(2, "rollout").exists()
    assert len(list(run.path.glob("superseded/*/iterations/0002/rollout/data"))) == 1
    commit(other.step(1, "update"))
    with pytest.raises(Superseded):
        other.mirror.push()


def test_what_the_store_did_not_take_is_put_there_by_the_next_attempt_here(run):
    commit(run.levels)
    run.mirror.begin()
    iteration(run, 0, stages=4)
    iteration(run, 0, "again", stages=4)
    again = Run.open(run.path)
    assert not again.mirror.begin()
    assert by(run, run.checkpoint(0)) == "again"
    assert "checkpoints/0000" in stored(run)
    again.mirror.pull()
    assert by(run, run.checkpoint(0)) == "again"


def test_a_folder_beside_the_training_is_put_there_without_taking_it_over(run, elsewhere):
    run.mirror.begin()
    other = elsewhere(run)
    other.mirror.pull()
    other.mirror.push_evaluation(commit(other.evaluation("nightly")))
    commit(run.levels)
    run.mirror.push()
    assert stored(run) == ["evaluations/nightly", "levels"]


def test_a_run_of_a_name_is_made_once(run, new_run, tmp_path):
    shutil.rmtree(run.path)
    with pytest.raises(ConfigError, match="lake exists: choose another --name, or continue it"):
        new_run()
    assert not run.path.exists()
    with pytest.raises(ConfigError, match=r"there is no run file://.*other: it has no config/"):
        restore(f"{(tmp_path / 'store').as_uri()}/other")
    assert restore(f"{(tmp_path / 'store').as_uri()}/lake") == run.path


def test_a_folder_of_another_run_is_not_taken(run, new_run, tmp_path, make_experiment):
    path = run.path / "config" / "experiment.yaml"
    path.write_text(path.read_text().replace("seed: 7", "seed: 8"))
    with pytest.raises(ConfigError, match="is another run than file://"):
        restore(run.mirror.uri)


def test_folders_have_uris(run):
    assert run.mirror.uri_of(str(run.levels)) == f"{run.infra.store}/lake/levels"
    assert run.mirror.uri_of(str(run.path)) == run.mirror.uri == run.uri
    assert run.mirror.uri_of("/elsewhere") == "/elsewhere"


def refuse(*_: object, **__: object) -> None:
    raise StorageError("the store is full")


@pytest.mark.slow
def test_a_stage_s_result_and_events_are_in_the_store(
    make_experiment, make_outputs, tmp_path, monkeypatch
):
    store = LocalStore(tmp_path / "store")
    outputs = make_outputs()
    run = Run.create(
        make_experiment(),
        load_infra(None, [f"output_dir={outputs}", f"store={store.uri}", "device=cpu"]),
        "lake",
    )
    built = run_in_process(str(run.path), "build")
    assert built["uri"] == f"{store.uri}/lake/levels" and store.exists("lake/levels")
    events = (store.read_file("lake/events.jsonl") or b"").decode().splitlines()
    assert json.loads(events[-1])["event"] == "stage_finished"

    # While the store takes nothing the stage fails, but what it did is kept.
    store.delete("lake/levels")
    shutil.rmtree(run.levels)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put_directory", refuse)
        with pytest.raises(StorageError, match="the store is full"):
            run_in_process(str(run.path), "build")
    done = (run.levels / "manifest.json").read_bytes()
    assert not store.exists("lake/levels")
    assert run_in_process(str(run.path), "build") == built
    assert store.manifest("lake/levels") == done


@pytest.mark.slow
def test_a_step_is_given_the_run_by_its_uri(run, tmp_path, monkeypatch, make_outputs):
    monkeypatch.setenv("VAGEN_SCRATCH", str(make_outputs()))
    built = run_in_process(run.mirror.uri, "build")
    assert built["uri"] == f"{run.mirror.uri}/levels"
    assert not run.levels.exists() and "levels" in stored(run)


def test_a_store_that_cannot_be_written_is_an_error_of_one_line(run, new_run, tmp_path):
    commit(run.levels)
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    with pytest.raises(StorageError, match=r"cannot use the folder .*blocked"):
        new_run("other", blocked)
    assert not (run.path.parent / "other").exists()
