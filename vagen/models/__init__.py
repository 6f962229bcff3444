"""Models: loading, processors, attention, and tiny models built in code."""


class ModelError(ValueError):
    """A model that cannot be used; the message says which, why, and how to fix it."""


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
