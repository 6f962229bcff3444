"""A folder has one writer at a time, and one that lost its lock writes nothing more."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vagen.storage import InUse, Superseded, commit_directory, read_manifest, sole_writer
from vagen.storage.writer import ATTEMPT, _held, assert_ownership

OTHER = """
import sys, time
from pathlib import Path
from vagen.storage import commit_directory, sole_writer
folder = Path(sys.argv[1])
with sole_writer(folder, patience=0.0):
    if "commit" in sys.argv:
        final = folder / "checkpoints" / "0001"
        with commit_directory(final, payload={"by": "other"}, replace=True):
            pass
    print("at work", flush=True)
    if "stay" in sys.argv:
        time.sleep(60)
"""


def other_process(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", OTHER, str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True)


def lose_lock(folder: Path) -> None:
    """What a network does to the lock of a node that it cuts off."""
    fcntl.flock(_held[folder][1], fcntl.LOCK_UN)


def commit(folder: Path, meanwhile=lambda: None) -> Path:
    final = folder / "checkpoints" / "0001"
    with commit_directory(final, payload={"by": "ours"}, replace=True) as partial:
        (partial / "weights").write_text("ours")
        meanwhile()
    return final


def test_a_second_process_is_refused_and_told_who_is_at_work(tmp_path):
    with sole_writer(tmp_path) as attempt:
        assert json.loads((tmp_path / ATTEMPT).read_text())["pid"] == os.getpid() == attempt.pid
        refused = other_process(tmp_path)
        assert refused.returncode != 0
        assert f"is in use by another process (process {os.getpid()} on" in refused.stderr
        assert commit(tmp_path) == commit(tmp_path)
    assert other_process(tmp_path).returncode == 0


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path):
    command = [sys.executable, "-c", OTHER, str(tmp_path), "stay"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "at work\n"
    with pytest.raises(InUse, match=f"process {process.pid} on"), sole_writer(tmp_path, patience=0):
        pass
    process.kill()
    process.wait()
    with sole_writer(tmp_path):
        commit(tmp_path)


def test_an_attempt_that_was_superseded_leaves_the_newer_ones_checkpoint(tmp_path):
    def meanwhile():
        lose_lock(tmp_path)
        assert other_process(tmp_path, "commit").returncode == 0

    with sole_writer(tmp_path):
        with pytest.raises(Superseded, match=r"0001 was not written: a newer attempt \(process"):
            commit(tmp_path, meanwhile)
        assert read_manifest(tmp_path / "checkpoints" / "0001").payload == {"by": "other"}
        assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["0001"]
        with pytest.raises(Superseded):
            commit(tmp_path)
    with sole_writer(tmp_path):
        assert read_manifest(commit(tmp_path)).payload == {"by": "ours"}


def test_nobody_takes_over_between_the_look_and_the_rename(tmp_path):
    """A lock that was lost is taken once more for the time of the rename."""
    with sole_writer(tmp_path):
        lose_lock(tmp_path)
        assert_ownership(tmp_path / "x")
        assert other_process(tmp_path).returncode != 0


def test_a_file_whose_writer_died_over_it_names_nobody(tmp_path):
    with sole_writer(tmp_path):
        (tmp_path / ATTEMPT).write_text('{"nam')
        with pytest.raises(Superseded, match="an unknown process"):
            commit(tmp_path)
    with sole_writer(tmp_path):
        commit(tmp_path)


def test_folders_that_nobody_writes_are_free(tmp_path, tmp_path_factory):
    with sole_writer(tmp_path):
        commit(tmp_path_factory.mktemp("elsewhere"))
