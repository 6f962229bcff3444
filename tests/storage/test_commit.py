"""Directories appear whole or not at all, and say what is wrong with a disk."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from vagen.storage import (
    MANIFEST,
    CorruptArtifact,
    FileEntry,
    StorageError,
    commit_directory,
    read_manifest,
    remove_all_stale,
    reuse_file,
    storage_errors,
    verify_directory,
    write_files,
)


def write(final: Path, content: str = "hello", **options) -> Path:
    with commit_directory(final, kind="thing", **options) as partial:
        (partial / "a.txt").write_text(content)
        (partial / "sub").mkdir()
        (partial / "sub" / "b.txt").write_text("b")
    return final


def test_a_committed_directory_has_files_and_manifest(tmp_path):
    payload = {"count": 1}
    with commit_directory(
        tmp_path / "deep" / "er", kind="thing", schema_version=3, payload=payload
    ) as partial:
        assert not (tmp_path / "deep" / "er").exists()
        (partial / "a.txt").write_text("hello")
        payload["late"] = (1, 2)
    manifest = verify_directory(tmp_path / "deep" / "er")
    assert (manifest.kind, manifest.schema_version) == ("thing", 3)
    assert manifest.payload == {"count": 1, "late": [1, 2]}
    assert manifest.files["a.txt"].size == 5
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["er"]
    written = json.loads((tmp_path / "deep" / "er" / MANIFEST).read_text())
    assert written["digest"] == manifest.digest


def test_others_may_read_what_was_committed(tmp_path):
    (tmp_path / "plain").mkdir()
    final = write(tmp_path / "x")
    assert stat.S_IMODE(final.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_an_error_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), commit_directory(tmp_path / "x") as partial:
        (partial / "a.txt").write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_finished_directory_is_kept_unless_replaced(tmp_path):
    final = write(tmp_path / "x", "first")
    with pytest.raises(StorageError, match="exists already"):
        write(final, "second")
    assert (final / "a.txt").read_text() == "first"
    with pytest.raises(RuntimeError), commit_directory(final, replace=True):
        raise RuntimeError
    assert (final / "a.txt").read_text() == "first"
    write(final, "third", replace=True)
    assert (final / "a.txt").read_text() == "third"
    assert list(tmp_path.iterdir()) == [final]


def test_digest_is_of_the_content_alone(tmp_path):
    a, b = (read_manifest(write(tmp_path / n)) for n in "ab")
    c = read_manifest(write(tmp_path / "c", "other"))
    d = read_manifest(write(tmp_path / "d", payload={"x": 1}))
    assert a.digest == b.digest
    assert len({a.digest, c.digest, d.digest}) == 3


KILLED = """
import os, signal, sys
from pathlib import Path
from vagen.storage import commit_directory
with commit_directory(Path(sys.argv[1])) as partial:
    (partial / "a.txt").write_text("half")
    print(partial, flush=True)
    if sys.argv[2] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.read()
"""


def test_what_a_killed_attempt_left_is_removed_by_the_next(tmp_path):
    final = tmp_path / "x [1]"
    done = subprocess.run([sys.executable, "-c", KILLED, final, "die"], capture_output=True)
    assert done.returncode == -signal.SIGKILL
    left = Path(done.stdout.decode().strip())
    assert left.exists() and not final.exists()
    write(final)
    assert list(tmp_path.iterdir()) == [final]


def test_a_live_attempt_is_left_alone(tmp_path):
    final = tmp_path / "x"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, final, "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        partial = Path(other.stdout.readline().decode().strip())
        write(final)
        assert (partial / "a.txt").exists()
        other.stdin.close()
        assert other.wait() != 0
    assert (final / "a.txt").read_text() == "hello"


def test_corruption_names_the_file_and_both_digests(tmp_path):
    final = write(tmp_path / "x")
    expected = read_manifest(final).files["sub/b.txt"].sha256
    (final / "sub" / "b.txt").write_text("c")
    with pytest.raises(CorruptArtifact) as caught:
        verify_directory(final)
    message = str(caught.value)
    assert "sub/b.txt is corrupt" in message and expected in message
    assert "2e7d2c03a9507ae265ecf5b5356885a53393a2029d241394997265a1a25aefc6" in message
    (final / "sub" / "b.txt").unlink()
    with pytest.raises(CorruptArtifact, match=r"b\.txt is missing"):
        verify_directory(final)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"thing"', '"other"', "was changed after it was written"),
        ("{", "", "is not a manifest"),
        ('"files"', '"fields"', "is not a manifest"),
    ],
)
def test_a_changed_manifest_is_refused(tmp_path, old, new, message):
    path = write(tmp_path / "x") / MANIFEST
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(CorruptArtifact, match=message):
        read_manifest(tmp_path / "x")


def test_a_manifest_cannot_point_outside(tmp_path):
    from dataclasses import replace

    path = write(tmp_path / "x") / MANIFEST
    manifest = read_manifest(tmp_path / "x")
    entry = manifest.files["a.txt"]
    path.write_text(replace(manifest, files={"../a.txt": entry}).to_json())
    with pytest.raises(CorruptArtifact, match="outside its folder"):
        verify_directory(tmp_path / "x")


def test_links_are_not_committed(tmp_path):
    with (
        pytest.raises(StorageError, match="neither a file nor a folder"),
        commit_directory(tmp_path / "x") as partial,
    ):
        (partial / "link").symlink_to("/etc/hostname")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_clear_error(tmp_path):
    with (
        pytest.raises(StorageError, match=f"{tmp_path}: the disk is full: free some space"),
        commit_directory(tmp_path / "x") as partial,
    ):
        (partial / "big").symlink_to("/dev/full")
        (partial / "big").write_bytes(b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="is a file, not a folder"):
        write(tmp_path / "file" / "x")


def test_a_folder_without_permission_is_one_clear_error():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        read, write_end = os.pipe()
        if (child := os.fork()) == 0:
            try:
                if os.geteuid() == 0:
                    os.setuid(65534)
                write(Path(folder) / "x")
            except StorageError as error:
                os.write(write_end, str(error).encode())
            finally:
                os._exit(0)
        os.close(write_end)
        message = os.read(read, 10_000).decode()
        os.close(read)
        os.waitpid(child, 0)
    assert f"cannot use the folder {folder}: permission denied" in message


def test_a_read_only_disk_is_one_clear_error(tmp_path):
    with pytest.raises(StorageError, match="file system is read-only"), storage_errors(tmp_path):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path / "x"))


def test_errors_about_other_places_keep_their_meaning(tmp_path):
    with pytest.raises(FileNotFoundError), commit_directory(tmp_path / "x"):
        Path("/does/not/exist").read_text()


def test_reuse_shares_bytes_or_copies(tmp_path, monkeypatch):
    source = tmp_path / "a"
    source.write_text("x")
    reuse_file(source, tmp_path / "b")
    assert (tmp_path / "b").samefile(source)

    def refuse(*_):
        raise OSError(errno.EXDEV, "cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    reuse_file(source, tmp_path / "c")
    assert (tmp_path / "c").read_text() == "x" and not (tmp_path / "c").samefile(source)


def test_files_are_hashed_as_they_are_written(tmp_path):
    """Of those the commit believes the digest; of the others it takes it."""
    known: dict[str, FileEntry] = {}
    content = {"a/weights": b"x" * 100_000, "a/state": b"y", "b": b"z" * 5}

    def fill(folder: Path) -> None:
        folder.mkdir()
        for name in ("weights", "state"):
            (folder / name).write_bytes(content[f"a/{name}"])

    with commit_directory(tmp_path / "made", known=known) as partial:
        (partial / "loose").write_text("loose")
        writers = {"a": fill, "b": lambda path: path.write_bytes(content["b"])}
        known |= write_files(partial, writers)
        assert known.keys() == content.keys()
        known["b"] = replace(known["b"], sha256="0" * 64)
    assert sorted(read_manifest(tmp_path / "made").files) == [*sorted(content), "loose"]
    with pytest.raises(CorruptArtifact, match=r"b is corrupt: the manifest has SHA-256 0000"):
        verify_directory(tmp_path / "made")
    assert verify_directory(tmp_path / "made", "a")


def test_what_dead_attempts_left_in_a_folder_is_removed_whatever_they_were_to_write(tmp_path):
    with commit_directory(tmp_path / "live") as live:
        for name in (".0001.partial-1", ".0002.partial-2"):
            (tmp_path / name).mkdir()
        assert len(remove_all_stale(tmp_path)) == 2
        assert live.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["live"]
