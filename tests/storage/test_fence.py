"""Of two attempts at the same work, the older one can no longer write."""

import fcntl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vagen.storage import Superseded, claim, commit_directory, fence, read_manifest

NEWER = """
import sys
from pathlib import Path
from vagen.storage import claim, commit_directory
folder = Path(sys.argv[1])
claim(folder, "newer")
if len(sys.argv) > 2:
    with commit_directory(folder / "checkpoints" / "0001", payload={"by": "newer"}, replace=True):
        pass
"""


@pytest.fixture
def folder(tmp_path):
    yield tmp_path
    fence._claimed.pop(tmp_path, None)


def newer_attempt(folder: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-c", NEWER, str(folder), *arguments], check=True)


def commit(folder: Path, meanwhile=lambda: None) -> Path:
    final = folder / "checkpoints" / "0001"
    with commit_directory(final, payload={"by": "older"}, replace=True) as partial:
        (partial / "weights").write_text("older")
        meanwhile()
    return final


def test_an_attempt_writes_as_often_as_it_likes(folder):
    claim(folder)
    assert commit(folder) == commit(folder)
    claim(folder)
    commit(folder)


def test_an_attempt_that_was_superseded_leaves_the_newer_ones_checkpoint(folder):
    claim(folder, "older")
    with pytest.raises(Superseded, match=r"0001 was not written: a newer attempt \(process \d+ on"):
        commit(folder, meanwhile=lambda: newer_attempt(folder, "and commits"))
    assert read_manifest(folder / "checkpoints" / "0001").payload == {"by": "newer"}
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["0001"]
    with pytest.raises(Superseded):
        commit(folder)
    claim(folder)
    assert read_manifest(commit(folder)).payload == {"by": "older"}


def test_nothing_is_written_where_nothing_was(folder):
    claim(folder)
    newer_attempt(folder)
    with pytest.raises(Superseded):
        commit(folder)
    assert not any((folder / "checkpoints").iterdir())


def test_nobody_takes_over_between_the_look_and_the_rename(folder):
    """A claim waits while the lock is held; on NFS too it is one that needs an open to write."""
    claim(folder)
    done = threading.Event()
    with fence.standing(folder / "x"):
        thread = threading.Thread(target=lambda: (newer_attempt(folder), done.set()))
        thread.start()
        assert not done.wait(1.5)
        with (folder / fence.CLAIM).open("a+") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert done.wait(30)
    thread.join()
    with pytest.raises(Superseded), fence.standing(folder / "x"):
        pass


def test_a_claim_whose_writer_died_over_it_is_nobodys(folder):
    claim(folder)
    (folder / fence.CLAIM).write_text('{"attem')
    with pytest.raises(Superseded):
        commit(folder)


def test_folders_that_nobody_claimed_are_free(folder, tmp_path_factory):
    claim(folder)
    newer_attempt(folder)
    commit(tmp_path_factory.mktemp("elsewhere"))
