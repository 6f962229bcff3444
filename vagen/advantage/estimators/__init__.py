"""The estimators, one per file."""

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from vagen.advantage.estimator import EstimatorSpec

ESTIMATORS: Mapping[str, EstimatorSpec] = MappingProxyType(
    {
        name: found
        for _, module, _ in pkgutil.iter_modules(__path__, f"{__name__}.")
        for name, found in vars(importlib.import_module(module)).items()
        if isinstance(found, EstimatorSpec)
    }
)
"""Built-in estimators: every function in this package that is declared an `estimator`."""
