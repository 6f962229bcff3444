"""How an S3 server is addressed; no request is sent."""

import pytest

from vagen.config.infra import S3Config
from vagen.storage import StorageError, open_store
from vagen.storage.s3_client import make_client

ELSEWHERE = "http://swift.vagen.svc:8080"


@pytest.mark.parametrize(
    ("variables", "options", "address"),
    [
        ({}, {}, "https://bucket.s3.amazonaws.com/key"),
        ({"AWS_REGION": "eu-west-1"}, {}, "https://bucket.s3.amazonaws.com/key"),
        ({"AWS_ENDPOINT_URL_S3": ELSEWHERE}, {}, f"{ELSEWHERE}/bucket/key"),
        ({}, {"endpoint_url": ELSEWHERE}, f"{ELSEWHERE}/bucket/key"),
        (
            {"AWS_ENDPOINT_URL_S3": ELSEWHERE},
            {"addressing_style": "virtual"},
            "http://bucket.swift.vagen.svc:8080/key",
        ),
    ],
)
def test_the_address_follows_options_and_environment(monkeypatch, variables, options, address):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    environment = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", **variables}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    client = make_client(S3Config(**options))
    url = client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "key"})
    assert url.partition("?")[0] == address
    assert client.meta.region_name == variables.get("AWS_REGION", "us-east-1")


@pytest.mark.parametrize("uri", ["s3://", "s3:///runs", "s3://b/../c"])
def test_a_uri_that_names_no_bucket_is_refused(uri):
    with pytest.raises(StorageError, match=r"names no bucket|is not a key"):
        open_store(uri)


def test_keys_in_a_uri_are_refused_and_not_repeated():
    with pytest.raises(StorageError, match="keys do not belong into") as caught:
        open_store("s3://key:secret@bucket")
    assert "secret@" not in str(caught.value)
