"""Where the environments of an experiment run."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from vagen.config.base import Section


def _url(text: str) -> str:
    if not re.fullmatch(r"https?://[^/\s@]+(/[^\s?#]*)?", text):
        raise ValueError(
            "write http://host:port or https://host, without user or query; the "
            "token is read from the environment variable that token_env names"
        )
    return text.rstrip("/")


class EnvironmentsConfig(Section):
    """Where environments run."""

    placement: Literal["auto", "process", "workers", "service"] = "auto"
    """`process`: in the process that plays. `workers`: in worker processes. `service`: behind HTTP
    (docs/service.md). `auto`: worker processes for simulators with globals or a graphics context,
    otherwise `process`."""
    workers: PositiveInt | None = None
    """Worker processes; null: one per core, at most 8, shared by the processes that play."""
    answer_seconds: PositiveFloat = 300.0
    """Seconds after which an unanswered call counts as a failure of the worker or service."""
    url: Annotated[str, AfterValidator(_url)] | None = None
    """Address of the service. Sessions are spread over all addresses of its name."""
    token_env: str = "VAGEN_ENV_TOKEN"
    """Environment variable with the service's token; unset: no token."""
    batch: Annotated[int, Field(ge=1, le=1024)] = 64
    """Maximum sessions in one request."""
    requests: PositiveInt = 8
    """Maximum parallel requests per address; further calls are batched."""
    retry_seconds: NonNegativeFloat = 120.0
    """Seconds for which a request is repeated while the service is away or busy."""
