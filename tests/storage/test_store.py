"""A store keeps committed directories whole, by key."""

import pytest

from vagen.storage import (
    CorruptArtifact,
    LocalStore,
    StorageError,
    commit_directory,
    open_store,
    read_manifest,
)


@pytest.fixture
def source(tmp_path):
    with commit_directory(tmp_path / "source", kind="thing") as partial:
        (partial / "sub").mkdir()
        (partial / "sub" / "a.txt").write_text("hello")
    return tmp_path / "source"


def test_put_list_fetch_delete(tmp_path, source):
    store = open_store((tmp_path / "my store").as_uri())
    uri = store.put_directory(source, "runs/a/rollout")
    assert uri == (tmp_path / "my store" / "runs" / "a" / "rollout").as_uri()
    store.put_directory(source, "runs/ab/rollout")
    assert store.list() == ["runs/a/rollout", "runs/ab/rollout"]
    assert store.list("runs/a") == store.list("runs/a/") == ["runs/a/rollout"]
    assert store.exists("runs/a/rollout") and not store.exists("runs/a")

    fetched = store.fetch_directory("runs/a/rollout", tmp_path / "new" / "copy")
    assert (fetched / "sub" / "a.txt").read_text() == "hello"
    assert read_manifest(fetched) == read_manifest(source)

    store.delete("runs/a/rollout")
    store.delete("runs/a/rollout")
    assert store.list() == ["runs/ab/rollout"]


def test_a_stored_directory_does_not_change_with_its_source(tmp_path, source):
    store = LocalStore(tmp_path / "store")
    store.put_directory(source, "a")
    (source / "sub" / "a.txt").write_text("later")
    fetched = store.fetch_directory("a", tmp_path / "b")
    assert (fetched / "sub" / "a.txt").read_text() == "hello"


def test_corruption_is_refused_on_the_way_in_and_out(tmp_path, source):
    store = LocalStore(tmp_path / "store")
    store.put_directory(source, "a")
    (tmp_path / "store" / "a" / "sub" / "a.txt").write_text("HELLO")
    with pytest.raises(CorruptArtifact, match=r"sub/a\.txt is corrupt"):
        store.fetch_directory("a", tmp_path / "b")
    assert not (tmp_path / "b").exists()
    (source / "sub" / "a.txt").unlink()
    with pytest.raises(CorruptArtifact, match=r"sub/a\.txt is missing"):
        store.put_directory(source, "c")
    assert store.list() == ["a"]


def test_refusals_say_what_is_wrong(tmp_path, source):
    store = LocalStore(tmp_path / "store")
    store.put_directory(source, "a")
    with pytest.raises(StorageError, match="exists already"):
        store.put_directory(source, "a")
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


def test_a_directory_is_replaced_if_asked_and_if_the_guard_lets_it(tmp_path, source):
    store = LocalStore(tmp_path / "store")
    store.put_directory(source, "a")
    with commit_directory(tmp_path / "other", kind="thing", payload={"n": 2}):
        pass

    def refuse():
        raise StorageError("superseded")

    with pytest.raises(StorageError, match=r"^superseded$"):
        store.put_directory(tmp_path / "other", "a", replace=True, guard=refuse)
    with pytest.raises(StorageError, match=r"^superseded$"):
        store.delete("a", guard=refuse)
    assert store.manifest("a") == (source / "manifest.json").read_bytes()
    store.put_directory(tmp_path / "other", "a", replace=True)
    assert store.manifest("a") == (tmp_path / "other" / "manifest.json").read_bytes()
    assert store.list() == ["a"]
    with pytest.raises(StorageError, match="has no 'b'"):
        store.manifest("b")


def test_loose_files_are_written_over(tmp_path):
    store = LocalStore(tmp_path / "store")
    assert store.read_file("runs/a/events.jsonl") is None
    for content in (b"1", b""):
        store.write_file("runs/a/events.jsonl", content)
        assert store.read_file("runs/a/events.jsonl") == content
    assert store.list() == []
    with pytest.raises(StorageError, match="is not a key"):
        store.read_file("../a")
