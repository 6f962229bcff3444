"""Options of stores; a part of the infra."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from vagen.config.addresses import AWS_KEYS, no_credentials
from vagen.config.base import Section


class S3Config(Section):
    """Connection to an `s3://` store.

    Keys come from boto3's usual chain (environment, profile, pod role), not from this file.
    """

    endpoint_url: Annotated[str, no_credentials(AWS_KEYS)] | None = None
    """Endpoint of a store other than AWS; null takes `AWS_ENDPOINT_URL_S3`, else AWS."""
    region: str | None = None
    """Region; null takes `AWS_REGION`, else the profile's, else us-east-1."""
    addressing_style: Literal["auto", "path", "virtual"] = "auto"
    """Bucket in the path or in the host name; `auto` is `virtual` at AWS and `path` elsewhere."""
    ca_bundle: str | None = None
    """File of trusted certificates; null takes `AWS_CA_BUNDLE`, else the system's."""
    part_size_mib: int = Field(default=32, ge=5, le=5120)
    """Part size of multipart uploads, in MiB; larger files get larger parts, 10,000 at most."""
    max_concurrency: PositiveInt = 8
    """Parallel requests; as many parts are held in memory."""
    retries: PositiveInt = 8
    """Attempts at a request before it fails."""
