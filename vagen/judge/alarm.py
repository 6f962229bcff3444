"""Warns if judge scores rise while success falls, the sign of a hacked judge.

When agents hacked the reward in the original experiments, their texts satisfied the judge in any
state, while their success dropped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vagen.config.judge_options import AlarmConfig
from vagen.metrics import JUDGE_SCORES, SUCCESS


@dataclass(frozen=True, slots=True)
class Alarm:
    """Trends of judge score and success over a window of iterations."""

    rise: float
    """Mean judge score of the later half minus that of the earlier half."""
    fall: float
    """Success of the earlier half minus that of the later half."""
    correlation: float
    """Pearson correlation of judge score and success over the window; 0 if one is constant."""
    raised: bool
    """Whether rise and fall are both positive and reach their thresholds."""

    def metrics(self) -> dict[str, float]:
        """Metrics of the iteration."""
        return {
            "judge/alarm": float(self.raised),
            "judge/alarm_rise": self.rise,
            "judge/alarm_fall": self.fall,
            "judge/success_correlation": self.correlation,
        }

    @property
    def message(self) -> str:
        """Message for the user."""
        return (
            f"the judge's mean score rose by {self.rise:.3f} while success fell by "
            f"{self.fall:.3f}: look at what the agent writes, it may satisfy the judge whatever "
            "the state (docs/judge.md)"
        )


def watch(config: AlarmConfig, history: Sequence[Mapping[str, float]]) -> Alarm | None:
    """Compares the two halves of the last iterations.

    Args:
        config: Window and thresholds.
        history: Metrics of iterations, oldest first; iterations without success or judge score are
            ignored.

    Returns:
        None if disabled or if the window is not full.
    """
    rows = [
        (float(np.mean([row[name] for name in JUDGE_SCORES if name in row])), row[SUCCESS])
        for row in history
        if SUCCESS in row and any(name in row for name in JUDGE_SCORES)
    ]
    if not config.enable or len(rows) < config.window:
        return None
    scores, successes = np.array(rows[-config.window :]).T
    half = config.window // 2
    rise = float(scores[-half:].mean() - scores[:half].mean())
    fall = float(successes[:half].mean() - successes[-half:].mean())
    varies = scores.std() > 0 and successes.std() > 0
    correlation = float(np.corrcoef(scores, successes)[0, 1]) if varies else 0.0
    raised = rise >= config.min_rise and fall >= config.min_fall and rise > 0 and fall > 0
    return Alarm(rise, fall, correlation, raised)
