"""What every configuration section shares: frozen, closed, documented."""

import hashlib
import json
from collections.abc import Iterator
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]

Refusals = Iterator[tuple[str, str]]
"""Dotted keys that cannot be as they are, each with the reason."""


class ConfigError(ValueError):
    """A configuration that cannot run: says what is wrong, where, and what would be right."""


class Section(BaseModel):
    """A frozen section of a configuration file; unknown keys are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )


def config_digest(config: BaseModel) -> str:
    """SHA-256 of a configuration's values, independent of key order; 64 hex digits."""
    canonical = json.dumps(config.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
