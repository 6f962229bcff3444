"""Errors of requests to an endpoint."""

from enum import StrEnum


class Reason(StrEnum):
    """Why there is no answer."""

    TIMEOUT = "timeout"
    """The endpoint did not answer in time."""
    UNREACHABLE = "unreachable"
    """There is no connection, or it broke."""
    RATE_LIMITED = "rate_limited"
    """The endpoint's rate limit was exceeded."""
    SERVER_ERROR = "server_error"
    """The endpoint failed."""
    REJECTED = "rejected"
    """The endpoint rejected this request."""
    INVALID = "invalid"
    """The answer has the wrong format."""
    CUT = "cut"
    """The answer ended at its token limit."""
    DEADLINE = "deadline"
    """The deadline has passed."""
    BREAKER = "breaker"
    """The circuit breaker is open beyond the deadline."""


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
"""Failures after which a request is retried."""
OUTAGES = frozenset({Reason.TIMEOUT, Reason.UNREACHABLE, Reason.SERVER_ERROR})
"""Failures of the endpoint, which count for the circuit breaker."""


class NoAnswerError(Exception):
    """There is no answer, and the user is not the cause."""

    def __init__(
        self,
        reason: Reason,
        detail: str = "",
        retry_after: float | None = None,
        *,
        holds_all: bool = False,
    ) -> None:
        """Creates the error.

        Args:
            reason: The reason.
            detail: Details, without secrets.
            retry_after: Seconds to wait, as requested by the endpoint.
            holds_all: Whether the pause applies to all requests.
        """
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason
        self.retry_after = retry_after
        self.holds_all = holds_all


class EndpointError(ValueError):
    """The endpoint cannot be used as configured; the message says why, and how to fix it."""
