"""Errors of a stage in a Ray cluster, by cause, which decides on retries."""


class JobRefused(ValueError):
    """The stage rejected the user's input; a retry would not help."""


class JobFailed(RuntimeError):
    """The stage failed, or its job was stopped; an immediate retry would not help."""


class Lost(RuntimeError):
    """The infrastructure failed: a pod, a node, the head or the actor is gone.

    Commits are safe, and another attempt continues from there.
    """
