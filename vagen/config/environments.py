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
    """Where environments run: the experiment is the same wherever that is."""

    placement: Literal["auto", "process", "workers", "service"] = "auto"
    """`process`: in the process that plays; `workers`: in worker processes beside it; `service`:
    behind HTTP (docs/service.md); `auto`: in the process, those whose simulator has globals or a
    graphics context in worker processes."""
    workers: PositiveInt | None = None
    """Worker processes of a process that plays; null: as many as cores, at most 8, shared by
    the processes that play."""
    answer_seconds: PositiveFloat = 300.0
    """A worker process or service that leaves a call unanswered for so long has failed."""
    url: Annotated[str, AfterValidator(_url)] | None = None
    """Address of the service. If its name has several, sessions are spread over them."""
    token_env: str = "VAGEN_ENV_TOKEN"
    """Environment variable that holds the service's token; unset: none is sent."""
    batch: Annotated[int, Field(ge=1, le=1024)] = 64
    """Most sessions in one request to the service."""
    requests: PositiveInt = 8
    """Most requests to one address of the service at a time; what comes meanwhile goes together."""
    retry_seconds: NonNegativeFloat = 120.0
    """How long a request is repeated while the service is away or busy."""
