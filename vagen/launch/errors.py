"""How a stage in a Ray cluster can end badly: whose fault it is decides what is done about it."""


class JobRefused(ValueError):
    """The stage refused what the user gave it; trying again would not help."""


class JobFailed(RuntimeError):
    """The stage broke, or its job was stopped; trying again at once would not help."""


class Lost(RuntimeError):
    """The infrastructure failed: a pod, a node, the head or the actor is gone.

    What is committed is safe, and another attempt goes on from there.
    """
