"""A store keeps committed directories whole, by key."""

import pytest

from vagen.storage import (
    CorruptArtifact,
    LocalStore,
    StorageError,
    commit_directory,
    open_store,
    read_manifest,
    verify_directory,
)


@pytest.fixture
def source(tmp_path):
    with commit_directory(tmp_path / "source", kind="thing") as partial:
        (partial / "sub").mkdir()
        (partial / "sub" / "a b+ü.txt").write_text("hello")
        (partial / "empty").touch()
        (partial / "c").write_bytes(b"x" * 999)
    return tmp_path / "source"


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.slow)])
def store(request, tmp_path):
    """A folder, and a prefix in a bucket."""
    if request.param == "s3":
        return open_store(f"{request.getfixturevalue('bucket')}/my/prefix")
    return open_store((tmp_path / "my store").as_uri())


def test_put_list_fetch_delete(tmp_path, source, store):
    uri = store.put_directory(source, "runs/a/rollout")
    assert uri == f"{store.uri}/runs/a/rollout"
    store.put_directory(source, "runs/ab/rollout")
    assert store.list() == ["runs/a/rollout", "runs/ab/rollout"]
    assert store.list("runs/a") == store.list("runs/a/") == ["runs/a/rollout"]
    assert store.exists("runs/a/rollout") and not store.exists("runs/a")
    assert store.manifest("runs/a/rollout") == (source / "manifest.json").read_bytes()

    fetched = store.fetch_directory("runs/a/rollout", tmp_path / "new" / "copy")
    assert (fetched / "sub" / "a b+ü.txt").read_text() == "hello"
    assert verify_directory(fetched) == read_manifest(source)
    part = store.fetch_directory("runs/a/rollout", tmp_path / "part", "sub")
    assert verify_directory(part, "sub") and not (part / "c").exists()

    store.delete("runs/a/rollout")
    store.delete("runs/a/rollout")
    assert store.list() == ["runs/ab/rollout"]


def test_a_stored_directory_does_not_change_with_its_source(tmp_path, source):
    store = LocalStore(tmp_path / "store")
    store.put_directory(source, "a")
    (source / "sub" / "a b+ü.txt").write_text("later")
    fetched = store.fetch_directory("a", tmp_path / "b")
    assert (fetched / "sub" / "a b+ü.txt").read_text() == "hello"


def test_corruption_is_refused_on_the_way_in_and_out(tmp_path, source):
    store = LocalStore(tmp_path / "store")
    store.put_directory(source, "a")
    (tmp_path / "store" / "a" / "sub" / "a b+ü.txt").write_text("HELLO")
    with pytest.raises(CorruptArtifact, match=r"sub/a b\+ü\.txt is corrupt"):
        store.fetch_directory("a", tmp_path / "b")
    assert not (tmp_path / "b").exists()
    (source / "sub" / "a b+ü.txt").unlink()
    with pytest.raises(CorruptArtifact, match=r"sub/a b\+ü\.txt is missing"):
        store.put_directory(source, "c")
    assert store.list() == ["a"]


@pytest.fixture
def other(tmp_path):
    with commit_directory(tmp_path / "other", kind="thing", payload={"n": 2}):
        pass
    return tmp_path / "other"


def test_refusals_say_what_is_wrong(tmp_path, source, other, store):
    store.put_directory(source, "a")
    with pytest.raises(StorageError, match="exists already"):
        store.put_directory(other, "a")
    with pytest.raises(StorageError, match="exists already"):
        store.fetch_directory("a", other)
    with pytest.raises(StorageError, match="has no 'b'"):
        store.fetch_directory("b", tmp_path / "b")
    with pytest.raises(StorageError, match=r"holds no manifest\.json"):
        (tmp_path / "raw").mkdir()
        store.put_directory(tmp_path / "raw", "raw")
    for key in ("", "/etc", "../a", "a/../../b", ".hidden", "a//b", "a/"):
        with pytest.raises(StorageError, match="is not a key"):
            store.delete(key)


@pytest.mark.parametrize("uri", ["az://bucket/runs", "gs://bucket"])
def test_an_unknown_scheme_is_refused(uri):
    with pytest.raises(StorageError, match=rf"no store for {uri[:2]}://.*file://"):
        open_store(uri)


def test_a_uri_with_a_machine_is_refused():
    with pytest.raises(StorageError, match="file:///server/runs"):
        open_store("file://server/runs")


def test_a_plain_path_is_a_local_store(tmp_path):
    store = open_store(tmp_path)
    assert isinstance(store, LocalStore) and store.root == tmp_path


def test_a_directory_is_replaced_if_asked_and_if_the_guard_lets_it(source, other, store):
    def refuse():
        raise StorageError("superseded")

    with pytest.raises(StorageError, match=r"^superseded$"):
        store.put_directory(source, "a", guard=refuse)
    assert not store.exists("a")
    store.put_directory(source, "a")
    with pytest.raises(StorageError, match=r"^superseded$"):
        store.put_directory(other, "a", replace=True, guard=refuse)
    with pytest.raises(StorageError, match=r"^superseded$"):
        store.delete("a", guard=refuse)
    assert store.manifest("a") == (source / "manifest.json").read_bytes()
    store.put_directory(other, "a", replace=True)
    assert store.manifest("a") == (other / "manifest.json").read_bytes()
    assert store.list() == ["a"]
    with pytest.raises(StorageError, match="has no 'b'"):
        store.manifest("b")


def test_loose_files_are_written_over(store):
    assert store.read_file("runs/a/events.jsonl") is None
    for content in (b"1", b""):
        store.write_file("runs/a/events.jsonl", content)
        assert store.read_file("runs/a/events.jsonl") == content
    assert store.list() == []
    with pytest.raises(StorageError, match="is not a key"):
        store.read_file("../a")
