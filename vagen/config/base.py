"""What every configuration section shares: frozen, closed, documented."""

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict

Refusals = Iterator[tuple[str, str]]
"""Of what cannot run: dotted key and reason."""


class ConfigError(ValueError):
    """A configuration that cannot run: says what is wrong, where, and what would be right."""


class Section(BaseModel):
    """A frozen section of a configuration file; unknown keys are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )
