"""Limits on requests to a network endpoint."""

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
    """Seconds before the first retry; doubled each time, with jitter."""
    max_backoff: PositiveFloat = 30.0
    """Maximum seconds between two attempts; a server's `Retry-After` has priority."""
    breaker_failures: PositiveInt = 8
    """Consecutive failures after which requests pause."""
    breaker_cooldown: PositiveFloat = 5.0
    """Length of the pause in seconds; doubled while the first request after it fails."""

    @property
    def request_rate(self) -> float | None:
        """Maximum requests per second; None is no limit."""
        return None
