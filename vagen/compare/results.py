"""Results of groups of runs: success, comparisons and costs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import final

import numpy as np
from numpy.typing import NDArray

from vagen.compare.groups import Group
from vagen.compare.reading import ComparisonError, RunSummary
from vagen.compare.statistics import (
    IntervalEstimate,
    iqm,
    mean_over_seeds,
    probability_of_improvement,
)
from vagen.tracking.stats import Interval, paired_bootstrap, success_ci95


@final
@dataclass(frozen=True, slots=True)
class Against:
    """Comparison of a group with the baseline."""

    gain: IntervalEstimate
    """Difference of success, paired by seed and level."""
    pairs: int
    """Number of common seeds."""
    probability: IntervalEstimate
    """Probability that a training of this group is better than one of the baseline."""
    over_levels: Interval | None
    """Interval of the gain for a single pair of seeds: the same two policies on other levels."""


@dataclass(frozen=True, slots=True)
class GroupResult:
    """A group's final success; values are None if no run was evaluated."""

    label: str
    seeds: int
    """Number of evaluated runs."""
    success: IntervalEstimate | None = None
    iqm: IntervalEstimate | None = None
    against: Against | None = None
    """None for the baseline itself."""
    over_levels: Interval | None = None
    """Interval of the success of a single seed: the same policy on other levels."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs of a group's runs, mean over runs."""

    label: str
    hours: float
    device_hours: float
    device: str
    cost: float | None
    """Total over all runs."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by step."""


def common_levels(runs: Sequence[RunSummary]) -> tuple[list[str], int]:
    """Levels that every evaluated run has played, and the total number of levels.

    Raises:
        ComparisonError: They have no level in common.
    """
    measured = [run for run in runs if run.by_level]
    if not measured:
        return [], 0
    levels = [run.by_level.keys() for run in measured]
    common = sorted(set.intersection(*map(set, levels)))
    if not common:
        first = measured[0]
        other = min(measured, key=lambda run: len(run.by_level.keys() & first.by_level.keys()))
        raise ComparisonError(
            f"{first.name} and {other.name} were measured on different levels: compare runs whose "
            "environments have the same `envs.<id>.env_config`, apart from their prompts"
        )
    return common, len(set.union(*map(set, levels)))


def results(groups: Sequence[Group], levels: Sequence[str], baseline: str) -> list[GroupResult]:
    """The final success of every group, and its comparison with the baseline."""
    first = _measured(next(one for one in groups if one.label == baseline))
    return [_result(one, first, levels, one.label == baseline) for one in groups]


def costs(groups: Sequence[Group], price: float | None) -> list[Cost]:
    """Costs of every group.

    Args:
        groups: The groups.
        price: Price of an hour of one device; None for the price in each run's infra.
    """
    return [_cost(one, price) for one in groups]


def _result(
    group: Group, first: dict[str, RunSummary], levels: Sequence[str], is_baseline: bool
) -> GroupResult:
    found = _measured(group)
    if not found:
        return GroupResult(group.label, 0)
    scores_SL = _scores(found.values(), levels)
    success = mean_over_seeds(scores_SL)
    if success.ci95 is not None:
        success = IntervalEstimate(
            success.value, (max(0.0, success.ci95[0]), min(1.0, success.ci95[1]))
        )
    return GroupResult(
        group.label,
        len(found),
        success,
        iqm(_per_environment(scores_SL, levels)),
        None if is_baseline or not first else _against(first, found, levels),
        success_ci95(list(scores_SL[0])) if len(found) == 1 else None,
    )


def _against(
    first: dict[str, RunSummary], found: dict[str, RunSummary], levels: Sequence[str]
) -> Against:
    before, after = _scores(first.values(), levels), _scores(found.values(), levels)
    shared = [seed for seed in found if seed in first]
    probability = probability_of_improvement(
        _per_environment(before, levels), _per_environment(after, levels)
    )
    if not shared:
        gain = IntervalEstimate(float(after.mean() - before.mean()), None)
        return Against(gain, 0, probability, None)
    one, other = (_scores([runs[seed] for seed in shared], levels) for runs in (first, found))
    over_levels = paired_bootstrap(one[0], other[0], seed=0).ci95 if len(shared) == 1 else None
    return Against(mean_over_seeds(other - one), len(shared), probability, over_levels)


def _measured(group: Group) -> dict[str, RunSummary]:
    """Evaluated runs by seed."""
    return {seed: run for seed, run in zip(group.seeds, group.runs, strict=True) if run.by_level}


def _scores(runs: Iterable[RunSummary], levels: Sequence[str]) -> NDArray[np.float64]:
    return np.array([[run.by_level[level] for level in levels] for run in runs])


def _per_environment(scores_SL: NDArray[np.float64], levels: Sequence[str]) -> NDArray[np.float64]:
    """Mean success per seed and environment, shape [S, E]."""
    names = [level.rpartition("/")[0] for level in levels]
    columns = [
        scores_SL[:, [name == one for one in names]].mean(1) for name in dict.fromkeys(names)
    ]
    return np.stack(columns, axis=1)


def _cost(group: Group, price: float | None) -> Cost:
    runs = group.runs
    devices = {"GPU" if run.gpu_hours else "CPU" for run in runs}
    prices = [run.gpu_hour_price if price is None else price for run in runs]
    known = price is not None or all(run.gpu_hours for run in runs)
    bills = [
        run.device_hours * one for run, one in zip(runs, prices, strict=True) if one is not None
    ]
    steps = dict.fromkeys(step for run in runs for step in run.seconds)
    return Cost(
        group.label,
        fmean(run.hours for run in runs),
        fmean(run.device_hours for run in runs),
        "/".join(sorted(devices)),
        sum(bills) if known and len(bills) == len(runs) else None,
        {step: fmean(run.seconds.get(step, 0.0) for run in runs) for step in steps},
    )
