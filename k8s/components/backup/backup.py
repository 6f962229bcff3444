"""Copies the dump of MLflow's database and the buckets to another store, or back.

backup.py out|back
"""

import os
import sys
from datetime import UTC, datetime

import boto3

DUMP = "/dump/mlflow.dump"
backups, _, prefix = os.environ["BACKUP_DESTINATION"].removeprefix("s3://").partition("/")
prefix = f"{prefix.rstrip('/')}/" if prefix else ""


def store(keys: str, endpoint: str | None):
    """A client with the keys whose variables start with `keys`; without any, the pod's identity."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=os.environ.get(f"{keys}_AWS_ACCESS_KEY_ID"),
        aws_secret_access_key=os.environ.get(f"{keys}_AWS_SECRET_ACCESS_KEY"),
    )


def objects(client, bucket: str, start: str) -> dict[str, dict]:
    """What is in a bucket below `start`, by the key after it."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=start)
    found = [one for page in pages for one in page.get("Contents", [])]
    return {one["Key"].removeprefix(start): one for one in found}


def copy(source, bucket: str, start: str, target, to: str, below: str) -> None:
    """Copies what is missing or of another size there, or older than here; removes nothing."""
    there, copied = objects(target, to, below), 0
    for key, one in objects(source, bucket, start).items():
        known = there.get(key)
        if known and known["Size"] == one["Size"] and known["LastModified"] >= one["LastModified"]:
            continue
        body = source.get_object(Bucket=bucket, Key=one["Key"])["Body"]
        target.upload_fileobj(body, to, below + key)
        copied += one["Size"]
    print(f"{bucket}/{start} to {to}/{below}: {copied / 1e6:.1f} MB", flush=True)


def main(way: str) -> None:
    """Copies in one of the two ways."""
    away = store("BACKUP", os.environ.get("BACKUP_ENDPOINT"))
    if way == "out":
        name = f"{prefix}mlflow/{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}.dump"
        away.upload_file(DUMP, backups, name)
        print(f"{name}: {os.path.getsize(DUMP)} bytes", flush=True)
    else:
        newest = max(objects(away, backups, f"{prefix}mlflow/"))
        away.download_file(backups, f"{prefix}mlflow/{newest}", DUMP)
        print(f"database of {newest}", flush=True)
    artifacts = os.environ["MLFLOW_ARTIFACTS_DESTINATION"].removeprefix("s3://").split("/")[0]
    for keys, bucket in (("RUNS", os.environ["S3_BUCKET"]), ("MLFLOW", artifacts)):
        home, kept = store(keys, os.environ.get("AWS_ENDPOINT_URL_S3")), f"{prefix}{bucket}/"
        if way == "out":
            copy(home, bucket, "", away, backups, kept)
        else:
            copy(away, backups, kept, home, bucket, "")


main(sys.argv[1])
