"""The estimators, one per file; each declares there what it reads and gives."""

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
"""What comes with the package: every function in its files that is declared an `estimator`."""
