"""Advantage estimators: one per file, chosen by name.

>>> from vagen.advantage import ESTIMATORS, estimate_advantages
"""

from vagen.advantage.arguments import checked_inputs
from vagen.advantage.credit import Credit, CreditReliability, ProgressDiscount, make_credit
from vagen.advantage.estimate import estimate_advantages
from vagen.advantage.gigpo import step_advantages
from vagen.advantage.inputs import AdvantageError, AdvantageInputs, MaskName
from vagen.advantage.registry import ESTIMATORS, EstimatorSpec
from vagen.advantage.whitening import whiten

__all__ = [
    "ESTIMATORS",
    "AdvantageError",
    "AdvantageInputs",
    "Credit",
    "CreditReliability",
    "EstimatorSpec",
    "MaskName",
    "ProgressDiscount",
    "checked_inputs",
    "estimate_advantages",
    "make_credit",
    "step_advantages",
    "whiten",
]
