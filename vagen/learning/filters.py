"""StarPO-S: learns only from levels on which the policy is uncertain.

Trajectories of one level form a group; similar scores in a group give little signal. Source: RAGEN
(arXiv 2504.20073, section 4.2), with strategies of its second version (arXiv 2604.06268).

Shape legend: B trajectories, G groups.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

FilterStrategy = Literal["none", "top_k", "top_p", "min_p"]
ProbabilityMode = Literal["linear", "softmax"]
LossScaling = Literal["none", "linear", "sqrt"]

ZERO = 1e-8
"""Standard deviations up to this are rounding errors of equal scores."""
_ROUNDING = 1e-9
"""Relative tolerance of sums and products that are compared with a share."""


def select_groups(
    stds: NDArray[np.float64],
    *,
    strategy: FilterStrategy,
    value: float,
    top_p_prob_mode: ProbabilityMode = "linear",
    include_zero: bool = False,
) -> NDArray[np.bool_]:
    """Chooses groups by the standard deviation of their scores, largest first.

    Candidates are the groups of deviation above 0, or all with `include_zero`. Kept are

    - `top_k`: `floor(value G)` groups, at least one; G counts all groups;
    - `top_p`, `linear`: the fewest groups whose deviations add up to `value` times the sum; none if
      the sum is 0;
    - `top_p`, `softmax`: the fewest groups whose softmax of deviations adds up to `value`;
    - `min_p`: those of at least `value` times the largest deviation.

    `top_p` of 1 keeps all candidates. Of equal deviations the earlier group goes first. RAGEN's
    `linear` lowers the sum to be reached by an absolute .01 (`selection_eps`), whose effect depends
    on the scale of the rewards; this implementation does not.

    Args:
        stds: [G] floats, standard deviation of each group's scores.
        strategy: `none` keeps all.
        value: Share of groups, of the sum, or of the largest deviation; in (0, 1].
        top_p_prob_mode: What `top_p` sums.
        include_zero: Whether groups of equal scores may be kept.

    Returns:
        [G] bool, True where the group is kept; possibly all False.

    Raises:
        ValueError: Unknown strategy or mode, or a value outside (0, 1].
    """
    if strategy not in get_args(FilterStrategy):
        raise ValueError(f"strategy {strategy!r}; it must be one of {get_args(FilterStrategy)}")
    if top_p_prob_mode not in get_args(ProbabilityMode):
        raise ValueError(
            f"top_p_prob_mode {top_p_prob_mode!r}; it must be one of {get_args(ProbabilityMode)}"
        )
    if not 0.0 < value <= 1.0:
        raise ValueError(f"value = {value}; it must be in (0, 1]")
    kept = np.zeros(len(stds), np.bool_)
    if strategy == "none":
        return ~kept
    candidates = np.flatnonzero(include_zero | (stds > ZERO))
    if not candidates.size:
        return kept
    order = candidates[np.argsort(-stds[candidates], kind="stable")]
    ranked = stds[order]
    if strategy == "top_k":
        count = max(1, int(value * len(stds) * (1.0 + _ROUNDING)))
    elif strategy == "min_p":
        count = int((ranked >= value * ranked[0] * (1.0 - _ROUNDING)).sum())
    elif value == 1.0:
        count = len(order)
    else:
        count = _nucleus(ranked, value, top_p_prob_mode)
    kept[order[:count]] = True
    return kept


def _nucleus(ranked: NDArray[np.float64], share: float, mode: ProbabilityMode) -> int:
    """Number of leading entries that hold a share of the total."""
    masses = ranked if mode == "linear" else np.exp(ranked - ranked[0])
    if masses.sum() <= ZERO:
        return 0
    return int((masses.cumsum() < share * masses.sum() * (1.0 - _ROUNDING)).sum()) + 1


def loss_scale(kept: int, total: int, mode: LossScaling) -> float:
    """Factor of all advantages: the share of trajectories kept (`linear`), its square root, or 1.

    Otherwise the mean over few tokens would make an update of few trajectories as large as one of
    all.

    Raises:
        ValueError: Unknown mode.
    """
    if mode not in get_args(LossScaling):
        raise ValueError(f"loss_scaling {mode!r}; it must be one of {get_args(LossScaling)}")
    share = kept / max(total, 1)
    return {"none": 1.0, "linear": share, "sqrt": share**0.5}[mode]


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Size, mean and spread of each group, in order of its first trajectory."""

    index: NDArray[np.int64]  # [B] group of each trajectory
    sizes: NDArray[np.int64]  # [G]
    means: NDArray[np.float64]  # [G]
    squares: NDArray[np.float64]  # [G] sums of squared differences from the mean

    @property
    def stds(self) -> NDArray[np.float64]:
        """Unbiased deviations [G] (ddof 1), as in the group-relative estimators and in RAGEN.

        0 for a group of one.
        """
        return np.sqrt(self.squares / np.maximum(self.sizes - 1, 1))

    @property
    def variances(self) -> NDArray[np.float64]:
        """Population variances [G] (ddof 0)."""
        return self.squares / self.sizes


def group_statistics(scores: NDArray[np.float64], group_ids: Sequence[Hashable]) -> GroupStatistics:
    """Size, mean and spread of scores in each group.

    Args:
        scores: [B] floats, scores of trajectories that count.
        group_ids: B ids of any kind.

    Raises:
        ValueError: Unequal lengths.
    """
    if len(scores) != len(group_ids):
        raise ValueError(f"{len(group_ids)} group ids for {len(scores)} scores")
    numbers: dict[Hashable, int] = {}
    index = np.array([numbers.setdefault(name, len(numbers)) for name in group_ids], np.int64)
    sizes = np.bincount(index, minlength=len(numbers))
    means = np.bincount(index, weights=scores, minlength=len(numbers)) / sizes
    squares = np.bincount(index, weights=(scores - means[index]) ** 2, minlength=len(numbers))
    return GroupStatistics(index, sizes, means, np.asarray(squares, np.float64))
