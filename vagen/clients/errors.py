"""How a request to an endpoint can fail."""

from enum import StrEnum


class Reason(StrEnum):
    """Why there is no answer."""

    TIMEOUT = "timeout"
    """The endpoint did not answer in time."""
    UNREACHABLE = "unreachable"
    """No connection, or one that broke."""
    RATE_LIMITED = "rate_limited"
    """The endpoint had too many requests."""
    SERVER_ERROR = "server_error"
    """The endpoint failed."""
    REJECTED = "rejected"
    """The endpoint would not take this request."""
    INVALID = "invalid"
    """The answer was not of the form asked for."""
    CUT = "cut"
    """The answer ended at its token limit."""
    DEADLINE = "deadline"
    """The time for it was over."""
    BREAKER = "breaker"
    """Nothing is sent while the endpoint fails, and that is longer than there is time."""


RETRIED = frozenset(
    {
        Reason.TIMEOUT,
        Reason.UNREACHABLE,
        Reason.RATE_LIMITED,
        Reason.SERVER_ERROR,
        Reason.INVALID,
        Reason.CUT,
    }
)
"""Failures after which the request is sent again."""
OUTAGES = frozenset({Reason.TIMEOUT, Reason.UNREACHABLE, Reason.SERVER_ERROR})
"""Failures of the endpoint rather than of the request: they count towards the breaker."""


class NoAnswerError(Exception):
    """There is no answer, for a reason that is no mistake of the user."""

    def __init__(
        self,
        reason: Reason,
        detail: str = "",
        retry_after: float | None = None,
        *,
        holds_all: bool = False,
    ) -> None:
        """Creates it.

        Args:
            reason: Why.
            detail: What was seen, without any secret.
            retry_after: Seconds that the endpoint asks to wait.
            holds_all: Whether that is asked of all requests, not of this one alone.
        """
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason
        self.retry_after = retry_after
        self.holds_all = holds_all


class EndpointError(ValueError):
    """The endpoint cannot be used as configured: says what is wrong and what would be right."""
