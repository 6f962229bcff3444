"""How an endpoint on the network may be asked, whoever asks it."""

from pydantic import Field, PositiveFloat, PositiveInt

from vagen.config.base import Section


class ClientConfig(Section):
    """Limits of one endpoint, and what is done when it fails."""

    concurrency: PositiveInt = 32
    """Requests under way at once."""
    tokens_per_minute: PositiveFloat | None = None
    """Most tokens per minute, those of the prompts and the most that each answer may have; null is
    no limit."""
    timeout: PositiveFloat = 30.0
    """Seconds for one request."""
    retries: int = Field(default=6, ge=0)
    """Further attempts at a request that failed in a way that may pass."""
    backoff: PositiveFloat = 0.5
    """Seconds before the first of them, doubled each time, with jitter."""
    max_backoff: PositiveFloat = 30.0
    """Most seconds between two attempts; what a server asks for by `Retry-After` goes before."""
    breaker_failures: PositiveInt = 8
    """Failures in a row, of all requests together, after which none is sent for a while."""
    breaker_cooldown: PositiveFloat = 5.0
    """Seconds of that while, doubled as long as the first request after it fails."""

    @property
    def request_rate(self) -> float | None:
        """Most requests per second; None is no limit."""
        return None
