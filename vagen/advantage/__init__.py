"""Advantage estimators: one per file, chosen by name.

>>> from vagen.advantage import ESTIMATORS, estimate_advantages
"""

from vagen.advantage.credit import Credit, CreditReliability, ProgressDiscount, make_credit
from vagen.advantage.estimate import estimate_advantages, estimate_with_metrics
from vagen.advantage.inputs import AdvantageError, AdvantageInputs, Estimate, MaskName
from vagen.advantage.registry import ESTIMATORS, EstimatorSpec
from vagen.advantage.whitening import whiten

__all__ = [
    "ESTIMATORS",
    "AdvantageError",
    "AdvantageInputs",
    "Credit",
    "CreditReliability",
    "Estimate",
    "EstimatorSpec",
    "MaskName",
    "ProgressDiscount",
    "estimate_advantages",
    "estimate_with_metrics",
    "make_credit",
    "whiten",
]
