"""Controllers for `adaptive_credit`: lambda by critic calibration, or discount by progress.

Both use statistics of *earlier* batches only, so their output does not depend on the current batch.
Neither is from a paper.

Shape legend: K turns of a trajectory.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from vagen.advantage.rows import AdvantageError

SIGNIFICANT = 3.0
"""A correlation counts if it is this many standard errors above 0."""
Z_LIMIT = 3.0
"""Progress is clipped at this many standard deviations."""
DECAY = 0.9
"""Factor on the weight of earlier batches, per batch."""
LOW, HIGH = 0.85, 0.995
"""Limits of the discount."""


@dataclass(slots=True)
class Moments:
    """Weighted means and central second moments of pairs (x, y), with decaying weights."""

    weight: float = 0.0
    """Sum of the weights."""
    squared_weight: float = 0.0
    """Sum of the squared weights."""
    mean_x: float = 0.0
    mean_y: float = 0.0
    xx: float = 0.0
    """Weighted sum of squared deviations from the mean; `yy` and `xy` likewise."""
    yy: float = 0.0
    xy: float = 0.0

    @property
    def effective_count(self) -> float:
        """Effective sample size (Kish 1965)."""
        return self.weight**2 / self.squared_weight if self.squared_weight else 0.0

    def add(self, pairs: Sequence[tuple[float, float]], decay: float = DECAY) -> None:
        """Multiplies old weights by `decay` and adds pairs of weight 1 (Chan et al. 1983)."""
        self.weight *= decay
        self.squared_weight *= decay**2
        self.xx, self.yy, self.xy = decay * self.xx, decay * self.yy, decay * self.xy
        count = len(pairs)
        if not count:
            return
        mean_x = math.fsum(x for x, _ in pairs) / count
        mean_y = math.fsum(y for _, y in pairs) / count
        step_x, step_y = mean_x - self.mean_x, mean_y - self.mean_y
        between = self.weight * count / (self.weight + count)
        self.xx += math.fsum((x - mean_x) ** 2 for x, _ in pairs) + between * step_x**2
        self.yy += math.fsum((y - mean_y) ** 2 for _, y in pairs) + between * step_y**2
        self.xy += math.fsum((x - mean_x) * (y - mean_y) for x, y in pairs)
        self.xy += between * step_x * step_y
        self.weight += count
        self.squared_weight += count
        self.mean_x += step_x * count / self.weight
        self.mean_y += step_y * count / self.weight


@dataclass(slots=True)
class CreditReliability:
    """Lambda per turn from the calibration of the critic.

    With return G_k and value V_k at turn k of earlier batches, `b_k = Cov(G_k, V_k) / Var(V_k)`,
    cut to [0, 1], and 0 unless `corr(G_k, V_k) sqrt(n) >= 3` with the effective number n of
    trajectories. `L_k = 1 - b_k (1 - lam_min)`.

    `b` is the slope of the return over the value: 1 for a calibrated critic, however noisy the
    return, and 0 for an uninformative one. An uninformative critic gives lambda 1 (Monte Carlo,
    unbiased), a calibrated one low variance. The objective does not change.
    """

    lam_min: float = 0.5
    """Lambda of a turn whose value is perfectly calibrated."""
    turns: list[Moments] = field(default_factory=list)
    """Statistics of the pairs (value, return), by turn index."""

    def slopes(self, count: int) -> list[float]:
        """`b_k` of the first `count` turns; 0 for an unseen turn."""
        slopes = [_slope(moments) for moments in self.turns[:count]]
        return slopes + [0.0] * (count - len(slopes))

    def lams(self, count: int) -> list[float]:
        """`L_k` of the first `count` turns."""
        return [1.0 - slope * (1.0 - self.lam_min) for slope in self.slopes(count)]

    def update(self, returns: Sequence[Sequence[float]], values: Sequence[Sequence[float]]) -> None:
        """Adds a batch.

        Args:
            returns: Per trajectory, the discounted reward from each turn on.
            values: Per trajectory, the critic's value at each turn.

        Raises:
            AdvantageError: The two differ in shape or contain a number that is not finite.
        """
        pairs: list[list[tuple[float, float]]] = [[] for _ in self.turns]
        if [len(row) for row in returns] != [len(row) for row in values]:
            raise AdvantageError("returns and values: give one of each for every turn")
        for row in (zip(g, v, strict=True) for g, v in zip(returns, values, strict=True)):
            for k, (g, v) in enumerate(row):
                if not (math.isfinite(g) and math.isfinite(v)):
                    raise AdvantageError(f"return {g} and value {v} of turn {k}; not finite")
                if k == len(pairs):
                    pairs.append([])
                    self.turns.append(Moments())
                pairs[k].append((v, g))
        for moments, new in zip(self.turns, pairs, strict=True):
            moments.add(new)

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state for `load_state_dict`."""
        return {"type": "lambda", "turns": [asdict(moments) for moments in self.turns]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state.

        Raises:
            AdvantageError: The state is of the other mode.
        """
        _require_type(state, "lambda")
        self.turns = [Moments(**moments) for moments in state["turns"]]


def _slope(moments: Moments) -> float:
    if moments.xx <= 0.0 or moments.yy <= 0.0:
        return 0.0
    correlation = moments.xy / math.sqrt(moments.xx * moments.yy)
    if correlation * math.sqrt(moments.effective_count) < SIGNIFICANT:
        return 0.0
    return min(max(moments.xy / moments.xx, 0.0), 1.0)


@dataclass(slots=True)
class ProgressDiscount:
    """Experimental: the discount between turns depends on the progress just made.

    With a potential `Phi_k` in [0, 1] of the environment's true state before turn k,
    `z_k = (Phi_k - Phi_{k-1} - m) / s` clipped at 3, with m and s from earlier batches of
    the same environment:
    `G_k = LOW + (HIGH - LOW) sigmoid(z_k + c)` with `c` such that `z = 0` gives `gamma`.

    `G_k` is known before turn k is taken. But as a discount that depends on the history it changes
    the *objective*: reward after progress counts more, and for negative rewards progress is
    penalised. Compare runs by undiscounted success only.
    """

    gamma: float = 0.95
    """Discount at average progress: `high_level_gamma`."""
    envs: dict[str, Moments] = field(default_factory=dict)
    """Statistics of progress (as both x and y), by environment."""

    def __post_init__(self) -> None:
        """Raises AdvantageError unless `LOW < gamma < HIGH`."""
        if not LOW < self.gamma < HIGH:
            raise AdvantageError(f"gamma = {self.gamma}; it must be in ({LOW}, {HIGH})")

    def gammas(self, env: str, potentials: Sequence[float]) -> list[float]:
        """Discounts from each turn to the next state.

        Args:
            env: Name of the environment.
            potentials: K + 1 potentials: before each turn, and after the last.

        Returns:
            K floats; entry k depends on potentials up to k + 1.
        """
        seen = self.envs.get(env, Moments())
        deviation = math.sqrt(seen.xx / seen.weight) if seen.weight else 0.0
        found = []
        for before, after in pairwise(potentials):
            z = (after - before - seen.mean_x) / deviation if deviation > 0 else 0.0
            found.append(self._discount(min(max(z, -Z_LIMIT), Z_LIMIT)))
        return found

    def update(self, env: str, potentials: Sequence[Sequence[float]]) -> None:
        """Adds a batch of one environment: potentials of each trajectory."""
        steps = [b - a for row in potentials for a, b in pairwise(row)]
        self.envs.setdefault(env, Moments()).add([(step, step) for step in steps])

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state for `load_state_dict`."""
        return {"type": "gamma", "envs": {name: asdict(x) for name, x in self.envs.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state.

        Raises:
            AdvantageError: The state is of the other mode.
        """
        _require_type(state, "gamma")
        self.envs = {name: Moments(**moments) for name, moments in state["envs"].items()}

    def _discount(self, z: float) -> float:
        if z == 0.0:
            return self.gamma
        share = (self.gamma - LOW) / (HIGH - LOW)
        centre = math.log(share / (1.0 - share))
        return LOW + (HIGH - LOW) / (1.0 + math.exp(-z - centre))


Credit = CreditReliability | ProgressDiscount


def _require_type(state: Mapping[str, Any], kind: str) -> None:
    if state.get("type") != kind:
        raise AdvantageError(f"state of adaptive credit {state.get('type')!r}; it must be {kind!r}")
