"""Import this before `transformers` to save a second at every start.

It makes `transformers` skip:

- scikit-learn and SciPy, if installed (MLflow needs them), which it imports for assisted generation
and losses of object detection; both are unused here.
- a list of the modules of all installed distributions. It needs the versions of a few, whose
modules are named like the distribution.
- a second scan of its model folders: its cache has 128 entries for 480 folders.
"""

import functools
from importlib import metadata
from typing import Any
from unittest.mock import patch

_whole_list = metadata.packages_distributions
_lru_cache = functools.lru_cache


class _ByName(dict[str, list[str]]):
    """Distributions by module: item access assumes the module's name, `get` looks it up."""

    def __missing__(self, module: str) -> list[str]:
        return ["pillow" if module == "PIL" else module]

    def get(self, module: str, default: Any = None, /) -> Any:
        return _whole_list().get(module, default)


def _remembering(*args: Any, **options: Any) -> Any:
    """`functools.lru_cache` without a size limit."""
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
