"""Creates S3 clients, and translates their errors."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from boto3 import Session
from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    SSLError,
)
from s3transfer.exceptions import RetriesExceededError

from vagen.config.infra import S3Config
from vagen.storage.errors import StorageError, StoreAway

_CONNECT_TIMEOUT, _READ_TIMEOUT = 10, 60
"""Seconds."""
_KEYS = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or the profile, or the pod's role)"
_ADDRESS = "check infra.s3.endpoint_url (AWS_ENDPOINT_URL_S3), and that it can be reached from here"
_ADVICE = {
    "NoSuchBucket": "there is no such bucket: create it, or correct infra.store",
    "InvalidBucketName": "that is no name of a bucket: correct infra.store",
    "SignatureDoesNotMatch": f"the secret key is wrong: {_KEYS}",
    "InvalidAccessKeyId": f"the access key is not known there: {_KEYS}",
    "ExpiredToken": f"the session token has expired: {_KEYS}",
    "InvalidToken": f"the session token is not valid there: {_KEYS}",
    "AccessDenied": "access is denied: the keys need to list, read, write and delete below it",
    "AllAccessDisabled": "access is denied: the keys need to list, read, write and delete below it",
    "403": "access is denied: the keys need to list, read, write and delete below it",
    "RequestTimeTooSkewed": "this machine's clock is wrong: set it (NTP)",
    "PermanentRedirect": "the bucket is in another region: set infra.s3.region",
    "AuthorizationHeaderMalformed": "the bucket is in another region: set infra.s3.region",
    "301": "the bucket is in another region: set infra.s3.region",
    "KeyTooLongError": "a file's name is too long for the store: shorten it",
    "KeyTooLong": "a file's name is too long for the store: shorten it",
    "QuotaExceeded": "the quota there is used up: free some space (`vagen store gc`)",
    "XAmzContentSHA256Mismatch": "what arrived is not what was sent: try again",
    "BadDigest": "what arrived is not what was sent: try again",
}


def make_client(options: S3Config) -> Any:
    """A thread-safe boto3 client.

    Raises:
        StorageError: The options or the profile are invalid.
    """
    # Otherwise every client logs the source of its keys and address.
    logging.getLogger("botocore").setLevel(logging.WARNING)
    config = Config(
        retries={"mode": "standard", "total_max_attempts": options.retries},
        # The server checks what arrives against the signed SHA-256.
        s3={"addressing_style": options.addressing_style, "payload_signing_enabled": True},
        max_pool_connections=options.max_concurrency + 2,
        connect_timeout=_CONNECT_TIMEOUT,
        read_timeout=_READ_TIMEOUT,
        tcp_keepalive=True,
        # Many servers other than AWS reject newer checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    with s3_errors("S3"):
        session = Session()
        # Clusters set AWS_REGION, which boto3 ignores.
        region = options.region or os.environ.get("AWS_REGION") or session.region_name
        return session.client(
            "s3",
            endpoint_url=options.endpoint_url,
            region_name=region or "us-east-1",
            config=config,
        )


@contextmanager
def s3_errors(where: str) -> Iterator[None]:
    """Converts errors of boto3 to a one-line `StorageError` with advice.

    A server that does not respond, or fails itself (5xx), raises `StoreAway`.

    Args:
        where: The accessed object, e.g. `s3://bucket/runs`.
    """
    try:
        yield
    except ClientError as error:
        kind = StoreAway if _status(error) >= 500 else StorageError
        raise kind(f"cannot use {where}: {_client_advice(error)}") from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise StorageError(f"cannot use {where}: no access keys are set: {_KEYS}") from error
    except NoRegionError as error:
        raise StorageError(f"cannot use {where}: set infra.s3.region (AWS_REGION)") from error
    except SSLError as error:
        raise StorageError(
            f"cannot use {where}: its certificate is not trusted: set AWS_CA_BUNDLE, or "
            f"correct infra.s3.endpoint_url ({_line(error)})"
        ) from error
    except (ConnectionError, HTTPClientError, RetriesExceededError) as error:
        raise StoreAway(
            f"cannot use {where}: the server does not answer: {_ADDRESS} ({_line(error)})"
        ) from error
    except (BotoCoreError, Boto3Error) as error:
        raise StorageError(f"cannot use {where}: {_line(error)}") from error
    except ValueError as error:
        # boto3 raises it for an endpoint that is not a URL.
        if type(error) is not ValueError:
            raise
        raise StorageError(f"cannot use {where}: {_line(error)}; {_ADDRESS}") from error


def _status(error: ClientError) -> int:
    """The HTTP status of an error; 0 if it has none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code_of(error: ClientError) -> str:
    """S3's error code, e.g. `NoSuchKey`."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _client_advice(error: ClientError) -> str:
    code = code_of(error)
    details = error.response.get("Error", {}).get("Message", "") or _line(error)
    said = f"{error.operation_name}: {code}, {' '.join(details.split())}"
    if advice := _ADVICE.get(code):
        return f"{advice} ({said})"
    if _status(error) >= 500:
        return f"the server is in trouble: try again later ({said})"
    return f"the server refused ({said})"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
