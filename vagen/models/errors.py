"""What can be wrong with a model."""


class ModelError(ValueError):
    """A model that cannot be used: says which, why, and what would be right."""


def first_line(error: Exception) -> str:
    """What an error says, cut to its first line."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
