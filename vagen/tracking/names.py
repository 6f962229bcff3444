"""Converts names and values to those that MLflow accepts."""

import hashlib
import json
import posixpath
import re
from collections.abc import Mapping
from typing import Any

MAX_NAME = 250
"""Maximum length of a parameter's or metric's name."""
MAX_VALUE = 6_000
"""Maximum length of a parameter's value."""

_ILLEGAL = re.compile(r"[^/\w.\- ]")


def legal_name(name: str) -> str:
    """The nearest legal name: letters, digits, `_ - . /` and spaces, without parent folders."""
    text = _ILLEGAL.sub("_", name).strip("/ ")
    text = re.sub(r"^\.\.+|(^|/)\.+(?=/|$)", r"\1_", text)
    text = posixpath.normpath(text or "_")
    if len(text) <= MAX_NAME:
        return text
    return f"{text[: MAX_NAME - 9]}-{_short(name)}"


def legal_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with legal names; adds a digest where two names would be equal."""
    legal: dict[str, Any] = {}
    for name, value in values.items():
        key = legal_name(name)
        if key in legal or (key != name and key in values):
            key = f"{key[: MAX_NAME - 9]}-{_short(name)}"
        legal[key] = value
    return legal


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested mappings as dotted keys, e.g. `algorithm.kl_ctrl.kl_coef`; other values as text."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{name}."))
        else:
            flat[name] = _text(value)
    return flat


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 12]}…{_short(text)}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
