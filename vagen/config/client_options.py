"""Limits on requests to a network endpoint."""

from typing import Any, ClassVar

from pydantic import Field, PositiveFloat, PositiveInt

from vagen.config.base import Section


class ClientConfig(Section):
    """Limits and retries of one endpoint."""

    concurrency: PositiveInt = 32
    """Parallel requests."""
    tokens_per_minute: PositiveFloat | None = None
    """Maximum tokens per minute, counting prompts and the maximum of each answer; null is no
    limit."""
    timeout: PositiveFloat = 30.0
    """Timeout of a request, in seconds."""
    retries: int = Field(default=6, ge=0)
    """Retries of a request after a transient error."""
    backoff: PositiveFloat = 0.5
    """Seconds before the first retry; doubled each time, with jitter, up to 60 times this. A
    server's `Retry-After` has priority. After 8 failures in a row all pause for 10 times this."""
    retired: ClassVar[dict[str, Any]] = {
        "max_backoff": 30.0,
        "breaker_failures": 8,
        "breaker_cooldown": 5.0,
    }

    @property
    def request_rate(self) -> float | None:
        """Maximum requests per second; None is no limit."""
        return None
