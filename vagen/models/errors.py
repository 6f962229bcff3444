"""What can be wrong with a model."""


class ModelError(ValueError):
    """A model that cannot be used: says which, why, and what would be right."""
