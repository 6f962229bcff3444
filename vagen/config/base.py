"""What every configuration section shares: frozen, closed, documented."""

from pydantic import BaseModel, ConfigDict


class ConfigError(ValueError):
    """A configuration that cannot run: says what is wrong, where, and what would be right."""


class Section(BaseModel):
    """A frozen section of a configuration file; unknown keys are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )
