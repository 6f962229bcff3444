"""The S3 store against a real server: OpenStack Swift."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from s3_faults import FaultyProxy

from vagen.config.infra import S3Config
from vagen.storage import (
    CorruptArtifact,
    StorageError,
    commit_directory,
    open_store,
    read_manifest,
    verify_directory,
)

pytestmark = pytest.mark.slow
MIB = 1 << 20
PART = S3Config(part_size_mib=5)


def make_directory(path: Path, files: dict[str, bytes], **payload: object) -> Path:
    with commit_directory(path, kind="thing", payload=payload) as partial:
        for name, content in files.items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            (partial / name).write_bytes(content)
    return path


@pytest.fixture
def source(tmp_path):
    return make_directory(
        tmp_path / "source", {"sub/a b+ü.txt": b"hello", "empty": b"", "c": b"x" * 999}
    )


def names(swift, uri: str) -> list[str]:
    """Every object of a bucket."""
    listed = swift.client().list_objects_v2(Bucket=uri.removeprefix("s3://"))
    return [entry["Key"] for entry in listed.get("Contents", ())]


def test_what_is_replaced_or_deleted_takes_no_room_any_more(tmp_path, swift, bucket, source):
    store = open_store(bucket)
    for _ in range(2):
        assert store.put_directory(source, "a") == f"{bucket}/a"
    store.put_directory(make_directory(tmp_path / "other", {"a": b"1"}), "a", replace=True)
    assert (store.fetch_directory("a", tmp_path / "c") / "a").read_bytes() == b"1"
    assert len(names(swift, bucket)) == 2
    store.delete("a")
    assert names(swift, bucket) == []


def test_equal_content_of_another_writer_is_no_conflict(tmp_path, swift, bucket):
    store = open_store(bucket)
    for name in ("one", "two"):
        path = make_directory(tmp_path / name, {"a": b"1"})
        manifest = path / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"created": "20', f'"created": "{name}'))
        store.put_directory(path, "a")
    assert len(names(swift, bucket)) == 2
    assert '"created": "one' in store.manifest("a").decode()


@pytest.mark.parametrize("size", [MIB, 12 * MIB], ids=["whole", "in parts"])
def test_a_file_that_is_not_what_its_manifest_says_is_not_put(tmp_path, swift, bucket, size):
    content = bytearray(os.urandom(size))
    directory = make_directory(tmp_path / "made", {"weights": bytes(content)})
    store = open_store(bucket, PART)
    content[size // 2] ^= 1
    (directory / "weights").write_bytes(content)
    with pytest.raises(CorruptArtifact, match=r"weights is corrupt: the manifest has SHA-256"):
        store.put_directory(directory, "a")
    (directory / "weights").unlink()
    with pytest.raises(CorruptArtifact, match="weights is missing"):
        store.put_directory(directory, "a")
    assert names(swift, bucket) == [] and list(store.uploads()) == []
    content[size // 2] ^= 1
    (directory / "weights").write_bytes(content)
    store.put_directory(directory, "a")
    assert verify_directory(store.fetch_directory("a", tmp_path / "b"))


def test_a_corrupted_object_is_detected_and_named(tmp_path, swift, bucket):
    store = open_store(bucket, PART)
    content = os.urandom(6 * MIB)
    store.put_directory(make_directory(tmp_path / "a", {"small": b"hello", "large": content}), "a")
    client, name = swift.client(), bucket.removeprefix("s3://")
    small = next(key for key in names(swift, bucket) if key.endswith("small"))

    client.put_object(Bucket=name, Key=small, Body=b"hullo")
    with pytest.raises(CorruptArtifact, match=r"/small is corrupt: the manifest of .* has SHA-256"):
        store.fetch_directory("a", tmp_path / "b")
    for other in (b"hell", b"hello!"):
        client.put_object(Bucket=name, Key=small, Body=other)
        with pytest.raises(CorruptArtifact, match="/small is corrupt"):
            store.fetch_directory("a", tmp_path / "b")
    client.delete_object(Bucket=name, Key=small)
    with pytest.raises(CorruptArtifact, match="/small is missing"):
        store.fetch_directory("a", tmp_path / "b")
    client.put_object(Bucket=name, Key=small, Body=b"hello")
    client.put_object(Bucket=name, Key=small.replace("small", "large"), Body=content[:-1] + b"\x00")
    with pytest.raises(CorruptArtifact, match="/large is corrupt"):
        store.fetch_directory("a", tmp_path / "b")
    assert not (tmp_path / "b").exists()

    client.put_object(Bucket=name, Key="a/manifest.json", Body=b"{}")
    with pytest.raises(CorruptArtifact, match="is not a manifest"):
        store.fetch_directory("a", tmp_path / "b")


@pytest.mark.parametrize(
    ("variables", "uri", "message"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, None, "the secret key is wrong: check AWS_ACCESS"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, None, "check AWS_ACCESS_KEY_ID"),
        ({}, "s3://no-such-bucket/runs", "there is no such bucket: create it"),
        ({"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}, None, r"does not answer: .*endpoint_url"),
        ({"AWS_ENDPOINT_URL_S3": "127.0.0.1:9"}, None, "endpoint_url"),
    ],
)
def test_errors_of_the_server_are_one_line_each(
    tmp_path, bucket, source, monkeypatch, variables, uri, message
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for use in (
        lambda store: store.put_directory(source, "a"),
        lambda store: store.fetch_directory("a", tmp_path / "a"),
        lambda store: store.list(),
        lambda store: store.write_file("a", b""),
    ):
        with pytest.raises(StorageError, match=message) as caught:
            use(open_store(uri or bucket, S3Config(retries=2)))
        assert "\n" not in str(caught.value)
        assert "testing" not in str(caught.value)


def test_without_keys_the_error_says_so(tmp_path, bucket, source, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(StorageError, match="no access keys are set: check AWS_ACCESS_KEY_ID"):
        open_store(bucket).put_directory(source, "a")


def test_nothing_is_lost_with_a_fifth_of_all_requests_spoilt(tmp_path, swift, bucket):
    contents = {f"files/{i}": os.urandom(1000 + i) for i in range(20)}
    contents["large"] = os.urandom(17 * MIB)
    with FaultyProxy(swift.endpoint, share=0.2, seed=1) as proxy:
        store = open_store(
            bucket, S3Config(endpoint_url=proxy.endpoint, part_size_mib=5, retries=10)
        )
        for i in range(3):
            directory = make_directory(tmp_path / f"{i}", contents, number=i)
            store.put_directory(directory, f"runs/{i}")
            store.write_file("runs/events.jsonl", b"{}\n" * (i + 1))
        assert store.list() == ["runs/0", "runs/1", "runs/2"]
        for i in range(3):
            fetched = store.fetch_directory(f"runs/{i}", tmp_path / "fetched" / f"{i}")
            assert verify_directory(fetched).payload == {"number": i}
            assert all((fetched / name).read_bytes() == contents[name] for name in contents)
        assert store.read_file("runs/events.jsonl") == b"{}\n" * 3
        store.delete("runs/1")
        assert store.list() == ["runs/0", "runs/2"]
    assert all(proxy.faults.values()) and sum(proxy.faults.values()) > 30, proxy.faults


def test_a_manifest_that_appears_meanwhile_is_not_overwritten(tmp_path, swift, bucket, source):
    """Another writer's manifest appears between the last look and the writing of our own."""
    store = open_store(bucket)
    others = [make_directory(tmp_path / name, {"a": name.encode()}) for name in ("one", "two")]
    manifests = [(other / "manifest.json").read_bytes() for other in others]
    due = manifests.copy()

    def intrude():
        if due:
            swift.client().put_object(
                Bucket=bucket.removeprefix("s3://"), Key="a/manifest.json", Body=due.pop(0)
            )

    with pytest.raises(StorageError, match="exists already"):
        store.put_directory(source, "a", guard=intrude)
    assert store.manifest("a") == manifests[0]
    seen = []
    store.put_directory(source, "a", replace=True, guard=lambda: seen.append(intrude()))
    assert len(seen) == 2 and not due
    assert verify_directory(store.fetch_directory("a", tmp_path / "b")) == read_manifest(source)


def test_a_server_without_conditional_writes_is_refused(swift, bucket, source):
    store = open_store(bucket, S3Config(endpoint_url=swift.bare_endpoint))
    for use in (
        store.check,
        lambda: store.put_directory(source, "a"),
        lambda: store.write_file("a", b""),
    ):
        with pytest.raises(StorageError, match="has no conditional writes"):
            use()
    assert names(swift, bucket) == []
    open_store(bucket).check()
    assert names(swift, bucket) == []


WRITER = """
import sys
from pathlib import Path
from vagen.storage import StorageError, commit_directory, open_store
folder, uri, name, go = sys.argv[1:]
source = Path(folder) / name
with commit_directory(source, kind="thing", payload={"by": name}) as partial:
    for i in range(4):
        (partial / str(i)).write_text(name * 1000)
store = open_store(uri)
store.exists("warm")
print("ready", flush=True)
sys.stdin.readline()
for place in range(int(go)):
    try:
        store.put_directory(source, f"place/{place}")
        print(place, "won", flush=True)
    except StorageError as error:
        assert "exists already" in str(error), error
        print(place, "lost", flush=True)
"""


def test_of_several_processes_that_write_one_key_one_wins_and_the_others_know(
    tmp_path, swift, bucket
):
    places, writers = 4, 4
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), bucket, f"writer-{i}", str(places)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(writers)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    # Whoever reads meanwhile sees the whole of one writer or nothing.
    store, seen = open_store(bucket), 0
    while any(process.poll() is None for process in processes):
        for key in store.list("place"):
            check_whole(store.fetch_directory(key, tmp_path / "read" / f"{seen}"))
            seen += 1
    winners: dict[str, list[int]] = {}
    for i, process in enumerate(processes):
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        for line in output.splitlines():
            place, outcome = line.split()
            if outcome == "won":
                winners.setdefault(place, []).append(i)
    assert sorted(winners) == [str(place) for place in range(places)]
    for place, [winner] in winners.items():
        fetched = store.fetch_directory(f"place/{place}", tmp_path / "end" / place)
        assert check_whole(fetched) == f"writer-{winner}"
    # Losers cleared up behind them.
    assert len(names(swift, bucket)) == places * 5


def check_whole(directory: Path) -> str:
    by = verify_directory(directory).payload["by"]
    assert {(directory / str(i)).read_text() for i in range(4)} == {by * 1000}
    return by


UPLOADER = """
import sys
from pathlib import Path
from vagen.config.infra import S3Config
from vagen.storage import open_store
open_store(sys.argv[1], S3Config(part_size_mib=16, max_concurrency=2)).put_directory(
    Path(sys.argv[2]), "checkpoints/0001")
"""


def test_an_upload_that_was_killed_goes_on_with_the_files_that_the_server_has(
    tmp_path, swift, bucket
):
    block = os.urandom(64 * MIB)
    files = {f"weights-{i}": i.to_bytes(8, "big") + block[8:] for i in range(8)}
    directory = make_directory(tmp_path / "checkpoint", files)
    process = subprocess.Popen([sys.executable, "-c", UPLOADER, bucket, str(directory)])
    deadline = time.monotonic() + 120
    while len(names(swift, bucket)) < 3:
        assert process.poll() is None and time.monotonic() < deadline
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = set(names(swift, bucket))
    assert 3 <= len(before) < 8
    store = open_store(bucket, S3Config(part_size_mib=16))
    assert store.list() == [] and not store.exists("checkpoints/0001")

    sent: list[str] = []
    store.client.meta.events.register(
        "before-parameter-build.s3.CreateMultipartUpload",
        lambda params, **_: sent.append(params["Key"]),
    )
    store.put_directory(directory, "checkpoints/0001")
    assert len(sent) == 8 - len(before) and not before & set(sent)

    fetched = store.fetch_directory("checkpoints/0001", tmp_path / "fetched")
    assert verify_directory(fetched) == read_manifest(directory)
    store.delete("checkpoints/0001")
    assert names(swift, bucket) == []
    for folder in (directory, fetched):  # pytest keeps its folders for a while
        shutil.rmtree(folder)
