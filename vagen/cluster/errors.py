"""Errors of the cluster side: what is wrong, where, and what would be right."""


class ClusterError(ValueError):
    """Something on the Kubernetes side that the user or the platform's people can put right."""


class ApiError(ClusterError):
    """An answer of the API server that is no success.

    Attributes:
        status: HTTP status; 0 if there was no answer within the time given to retries.
        reason: Kubernetes' own reason (`AlreadyExists`, `Expired`, ...), or empty.
    """

    def __init__(self, message: str, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason

    @property
    def over_quota(self) -> bool:
        """Whether a quota of the namespace is used up: it is room that is missing."""
        return self.status == 403 and "exceeded quota" in str(self)
