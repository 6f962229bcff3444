"""Options of stores; a part of the infra."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from vagen.config.addresses import AWS_KEYS, no_credentials
from vagen.config.base import Section


class S3Config(Section):
    """How an `s3://` store is reached. Keys come from boto3's own chain (environment, profile, role
    of the pod) and never from here.
    """

    endpoint_url: Annotated[str, no_credentials(AWS_KEYS)] | None = None
    """Address of a store that is not AWS; null takes `AWS_ENDPOINT_URL_S3`, else AWS."""
    region: str | None = None
    """null takes `AWS_REGION`, else the profile's, else us-east-1."""
    addressing_style: Literal["auto", "path", "virtual"] = "auto"
    """Bucket in the path or in the host name; `auto` is `virtual` at AWS and `path` at every other
    endpoint."""
    ca_bundle: str | None = None
    """File of certificates to trust; null takes `AWS_CA_BUNDLE`, else the usual ones."""
    part_size_mib: int = Field(default=32, ge=5, le=5120)
    """Files above it travel in parts of this size, MiB (larger where 10,000 would not do)."""
    max_concurrency: PositiveInt = 8
    """Requests side by side; as many parts are in memory."""
    retries: PositiveInt = 8
    """Attempts at a request before it counts as failed."""
