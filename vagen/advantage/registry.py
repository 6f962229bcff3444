"""Looks up estimators by name: built-in ones and user-defined ones."""

import importlib
import importlib.metadata

from vagen.advantage.estimator import EstimatorSpec
from vagen.advantage.estimators import ESTIMATORS
from vagen.advantage.rows import AdvantageError
from vagen.config.errors import unknown_name

ENTRY_POINTS = "vagen.estimators"
"""Entry point group for estimators of installed packages."""


def get_estimator(name: str) -> EstimatorSpec:
    """The estimator with a name: a key of `ESTIMATORS`, `module:function`, or an entry point.

    Raises:
        AdvantageError: No estimator has that name (the message gives the nearest), or the function
            cannot be imported or is not declared an `estimator`.
    """
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    points = {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    place = points[name].value if name in points else name
    module, colon, function = place.partition(":")
    if not colon:
        raise AdvantageError(
            f"{unknown_name('estimator', name, [*ESTIMATORS, *points])} (one of your own is "
            "written module:function)"
        )
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, TypeError) as error:
        raise AdvantageError(
            f"the estimator {name!r} cannot be loaded: {error}; it is written module:function, and "
            "its module must be installed or on PYTHONPATH"
        ) from error
    if not isinstance(found, EstimatorSpec):
        raise AdvantageError(
            f"the estimator {name!r} is not declared one; write @vagen.advantage.estimator(...) "
            "above it, with what it reads"
        )
    return found
