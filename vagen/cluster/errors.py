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


class JobFailed(ClusterError):
    """A RayJob that ended without success.

    Attributes:
        job: Name of the RayJob.
        reason: KubeRay's reason (`AppFailed`, `DeadlineExceeded`, ...) or `HeadLost`.
        tail: Last lines of the driver's log.
        advice: What to do about it; may be empty.
    """

    def __init__(self, job: str, reason: str, message: str, tail: list[str], advice: str) -> None:
        parts = [f"RayJob {job} failed ({reason}): {message}" if message else f"{job}: {reason}"]
        if advice:
            parts.append(advice)
        if tail:
            parts.append("last lines of its log:\n" + "\n".join(f"  | {line}" for line in tail))
        super().__init__("\n".join(parts))
        self.job = job
        self.reason = reason
        self.message = message
        self.tail = tail
        self.advice = advice
