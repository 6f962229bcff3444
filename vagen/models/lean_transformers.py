"""Imported before `transformers`, which then does without what takes a second of every start.

- scikit-learn and SciPy, where they are installed (MLflow brings them): it would import them for
  assisted generation and the losses of object detection, which nothing here uses.
- A list of the modules of all installed distributions, of which it needs the versions of a few,
  which have their distribution's name.
- A second reading of all the files of its models: it remembers 128 folders and has 480.
"""

import functools
from importlib import metadata
from typing import Any
from unittest.mock import patch

_whole_list = metadata.packages_distributions
_lru_cache = functools.lru_cache


class _ByName(dict[str, list[str]]):
    """Distributions by module: for a version the one of that name, for `get` the true ones."""

    def __missing__(self, module: str) -> list[str]:
        return ["pillow" if module == "PIL" else module]

    def get(self, module: str, default: Any = None, /) -> Any:
        return _whole_list().get(module, default)


def _remembering(*args: Any, **options: Any) -> Any:
    """`functools.lru_cache` that forgets no folder."""
    if args and getattr(args[0], "__name__", None) == "create_import_structure_from_path":
        return _lru_cache(maxsize=None)(args[0])
    return _lru_cache(*args, **options)


with (
    patch.object(metadata, "packages_distributions", _ByName),
    patch.object(functools, "lru_cache", _remembering),
):
    import transformers.utils

# pyrefly: ignore[bad-assignment]
transformers.utils.is_sklearn_available = transformers.utils.is_scipy_available = lambda: False
