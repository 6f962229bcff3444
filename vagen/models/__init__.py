"""Models: loading, processors, attention, and tiny models built in code."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vagen.models.errors import ModelError
    from vagen.models.loading import LanguageModel, ValueModel, load_model, value_model_from
    from vagen.models.processor import Processor, load_processor, load_tokenizer

_HOMES = {
    "ModelError": "errors",
    "LanguageModel": "loading",
    "ValueModel": "loading",
    "load_model": "loading",
    "value_model_from": "loading",
    "Processor": "processor",
    "load_processor": "processor",
    "load_tokenizer": "processor",
}

__all__ = [
    "LanguageModel",
    "ModelError",
    "Processor",
    "ValueModel",
    "load_model",
    "load_processor",
    "load_tokenizer",
    "value_model_from",
]


def __getattr__(name: str) -> Any:
    """Imports torch and transformers only on first use."""
    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(importlib.import_module(f"vagen.models.{_HOMES[name]}"), name)
