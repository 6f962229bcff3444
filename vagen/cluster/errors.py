"""Errors of the cluster; messages say what is wrong, where, and how to fix it."""


class ClusterError(ValueError):
    """A Kubernetes problem that the user or the cluster's administrators can fix."""


class ApiError(ClusterError):
    """An error response of the API server.

    Attributes:
        status: HTTP status; 0 if there was no response despite retries.
        reason: Kubernetes' reason (`AlreadyExists`, `Expired`, ...), or empty.
    """

    def __init__(self, message: str, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason

    @property
    def over_quota(self) -> bool:
        """Whether a quota of the namespace is exhausted."""
        return self.status == 403 and "exceeded quota" in str(self)
