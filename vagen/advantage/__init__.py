"""Advantage estimators by name: those of `vagen.advantage.estimators`, and user-defined ones."""

from vagen.advantage.credit import Credit, CreditReliability, ProgressDiscount
from vagen.advantage.estimate import (
    estimate_advantages,
    estimate_with_metrics,
    get_estimator,
    whiten,
)
from vagen.advantage.estimator import EstimatorSpec, estimator
from vagen.advantage.estimators import ESTIMATORS
from vagen.advantage.inputs import AdvantageArguments, AdvantageEstimate, AdvantageInputs, MaskName
from vagen.advantage.rows import AdvantageError

__all__ = [
    "ESTIMATORS",
    "AdvantageArguments",
    "AdvantageError",
    "AdvantageEstimate",
    "AdvantageInputs",
    "Credit",
    "CreditReliability",
    "EstimatorSpec",
    "MaskName",
    "ProgressDiscount",
    "estimate_advantages",
    "estimate_with_metrics",
    "estimator",
    "get_estimator",
    "whiten",
]
