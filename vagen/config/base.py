"""What every configuration section shares: frozen, closed, documented, without credentials.

Addresses are stored and shown with a run, so no password or token stands in them.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

_USER = re.compile(r"(https?://)[^\s/:@'\"]+@", re.IGNORECASE)
"""A user alone is a token to a web server, and no secret to a database."""
_PASSWORD = re.compile(r"(://[^\s/:@'\"]*:)[^\s/'\"]+@")
_PARAMETER = re.compile(
    r"([?&;][\w.-]*(?:passw|pwd|token|secret|key|signature|credential)[\w.-]*=)[^\s&;'\"]+",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """A text with `***` for what is secret in the addresses it holds.

    >>> redact("MLflow at postgresql://me:secret@db/mlflow is away")
    'MLflow at postgresql://me:***@db/mlflow is away'
    """
    for pattern, shown in ((_USER, r"\1***@"), (_PASSWORD, r"\1***@"), (_PARAMETER, r"\1***")):
        text = pattern.sub(shown, text)
    return text


AWS_KEYS = "keys are read from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


def no_credentials(instead: str) -> AfterValidator:
    """Rejects an address with a password, token or key in it.

    Args:
        instead: Where they are read from.
    """

    def check(address: str) -> str:
        if redact(address) != address:
            raise ValueError(f"it is stored with the run, no password may stand in it; {instead}")
        return address

    return AfterValidator(check)


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

    retired: ClassVar[dict[str, Any]] = {}
    """Former options and the values that are fixed now. Files of older runs have them, and they
    stay in the digest."""

    @model_validator(mode="before")
    @classmethod
    def _without_retired(cls, values: Any) -> Any:
        if not cls.retired or not isinstance(values, dict):
            return values
        return {k: v for k, v in values.items() if k not in cls.retired or v != cls.retired[k]}


DIGEST_EXEMPT = object()
"""Marks an option (`Annotated[type, DIGEST_EXEMPT]`) that older runs do not have.

At its default it is not in the digest, so that older runs can be resumed."""


def config_digest(config: BaseModel) -> str:
    """SHA-256 of a configuration's values, independent of key order; 64 hex digits."""
    canonical = json.dumps(canonical_values(config), **_CANONICAL)
    return hashlib.sha256(canonical.encode()).hexdigest()


_CANONICAL: dict[str, Any] = {"sort_keys": True, "separators": (",", ":")}


def canonical_values(config: BaseModel) -> dict[str, Any]:
    """A configuration's values, JSON-serialisable, without later options at their defaults."""
    return _known(config, config.model_dump(mode="json"))


def _known(value: Any, dumped: Any) -> Any:
    """The dump of a section, or of a mapping of them, without later options at their defaults."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return getattr(value, "retired", {}) | {
            name: _known(getattr(value, name), dumped[name])
            for name, field in fields.items()
            if DIGEST_EXEMPT not in field.metadata or getattr(value, name) != field.get_default()
        }
    if isinstance(value, dict) and any(isinstance(item, BaseModel) for item in value.values()):
        return {name: _known(item, dumped[name]) for name, item in value.items()}
    return dumped
