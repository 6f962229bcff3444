"""`vagen store`."""

import os
import time
from datetime import timedelta

import pytest

from vagen.cli.main import main
from vagen.cli.store import read_age
from vagen.config.infra import S3Config
from vagen.storage import commit_directory, open_store
from vagen.storage.collect import find_garbage
from vagen.storage.s3 import S3Store


@pytest.fixture
def source(tmp_path):
    with commit_directory(tmp_path / "source", kind="thing") as partial:
        (partial / "a").write_text("hello")
    return tmp_path / "source"


def test_a_folder_is_put_listed_checked_and_fetched(tmp_path, source, capsys):
    store = (tmp_path / "store").as_uri()
    assert main(["store", "put", f"{store}/runs", str(source)]) == 0
    assert main(["store", "ls", store]) == 0
    assert main(["store", "verify", store]) == 0
    assert main(["store", "fetch", f"{store}/runs", str(tmp_path / "copy")]) == 0
    put, listed, verified, fetched = capsys.readouterr().out.splitlines()
    assert put == f"{store}/runs" and listed.endswith("5 B  thing         runs")
    assert verified == "1 folders, all as their manifests say"
    assert (tmp_path / "copy" / "a").read_text() == "hello" and fetched.endswith("copy")

    (tmp_path / "store" / "runs" / "a").write_text("hullo")
    assert main(["store", "verify", store]) == 2
    out, err = capsys.readouterr()
    assert "a is corrupt" in out and "1 of 1 folders" in err


def test_what_makes_no_sense_is_refused(tmp_path, capsys):
    for words, message in [
        (["put", "file:///x/y"], "needs the URI and the folder"),
        (["gc", tmp_path.as_uri()], "only s3:// stores"),
        (["gc", "s3://b", "--older-than", "soon"], "--older-than is 'soon'; write a number and"),
        (["ls", "s3:///x"], "names no bucket"),
    ]:
        assert main(["store", *words]) == 2
        assert message in capsys.readouterr().err
    assert read_age("2w", "--expire") == timedelta(days=14)


@pytest.mark.slow
def test_gc_removes_what_nothing_refers_to_and_says_why(tmp_path, swift, bucket, source, capsys):
    store = open_store(f"{bucket}/prefix", S3Config(part_size_mib=5))
    assert isinstance(store, S3Store)
    client, name = swift.client(), bucket.removeprefix("s3://")
    store.put_directory(source, "old/levels")
    store.write_file("old/config/experiment.yaml", b"name: old")
    client.put_object(Bucket=name, Key="prefix/old/levels/.data/0000/weights", Body=b"x" * 5000)
    client.put_object(Bucket=name, Key="prefix/old/update/.data/1111/a", Body=b"x")
    client.create_multipart_upload(Bucket=name, Key="prefix/old/levels/.data/3333/big")
    client.create_multipart_upload(Bucket=name, Key="other/big")
    before = [key for key, _ in store.objects()]

    def gc(*words: str) -> str:
        assert main(["store", "gc", f"{bucket}/prefix", *words]) == 0
        return capsys.readouterr().out

    assert gc() == "0 removed, 0 B\n"
    time.sleep(1.5)
    said = gc("--older-than", "0m", "--dry-run")
    assert "old/levels/.data/0000: files of another attempt than the manifest's" in said
    assert "old/update/.data/1111: files without a manifest" in said
    assert "old/levels/.data/3333/big: an upload that was begun and not ended" in said
    assert "3 would be removed, 4.9 KiB" in said
    assert [key for key, _ in store.objects()] == before
    assert "3 removed" in gc("--older-than", "0m")
    assert len(list(store.objects())) == len(before) - 2
    assert [entry["Key"] for entry in client.list_multipart_uploads(Bucket=name)["Uploads"]] == [
        "other/big"
    ]
    store.fetch_directory("old/levels", tmp_path / "fetched")

    assert "0 removed" in gc("--expire", "1d")
    assert "old: a run that is too old" in gc("--expire", "0m")
    assert list(store.objects()) == []
    assert find_garbage(store, timedelta(0), timedelta(0)) == []
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in said
