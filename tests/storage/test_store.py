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
    for key in ("", "/etc", "../a", "a/../../b", ".hidden"):
        with pytest.raises(StorageError, match="is not a key"):
            store.delete(key)


@pytest.mark.parametrize("uri", ["s3://bucket/runs", "gs://bucket"])
def test_an_unknown_scheme_is_refused(uri):
    with pytest.raises(StorageError, match=rf"no store for {uri[:2]}://.*file://"):
        open_store(uri)


def test_a_uri_with_a_machine_is_refused():
    with pytest.raises(StorageError, match="file:///server/runs"):
        open_store("file://server/runs")


def test_a_plain_path_is_a_local_store(tmp_path):
    store = open_store(tmp_path)
    assert isinstance(store, LocalStore) and store.root == tmp_path
