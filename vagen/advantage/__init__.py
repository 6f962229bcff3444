"""Advantage estimators: one per file, chosen by name.

>>> from vagen.advantage import ESTIMATORS, estimate_advantages
"""

from vagen.advantage.estimate import estimate_advantages
from vagen.advantage.inputs import AdvantageError, AdvantageInputs
from vagen.advantage.registry import ESTIMATORS, EstimatorSpec
from vagen.advantage.whitening import whiten

__all__ = [
    "ESTIMATORS",
    "AdvantageError",
    "AdvantageInputs",
    "EstimatorSpec",
    "estimate_advantages",
    "whiten",
]
