"""The alarm: the judge's scores rise while success falls, which is what a hacked judge looks like.

In the agents that the reward's authors saw cheat, texts came to satisfy the judge whatever the
state; what they had been for, acting well, got worse meanwhile.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vagen.config.judge_options import AlarmConfig
from vagen.metrics import JUDGE_SCORES, SUCCESS


@dataclass(frozen=True, slots=True)
class Alarm:
    """What a window of iterations shows."""

    rise: float
    """Mean judge score in the later half less that in the earlier half."""
    fall: float
    """Success in the earlier half less that in the later half."""
    correlation: float
    """Pearson's, of judge score and success over the window; 0 if one never changes."""
    sounds: bool
    """Rise and fall are both positive and reach the configured thresholds."""

    def metrics(self) -> dict[str, float]:
        """For the records of the iteration."""
        return {
            "judge/alarm": float(self.sounds),
            "judge/alarm_rise": self.rise,
            "judge/alarm_fall": self.fall,
            "judge/success_correlation": self.correlation,
        }

    @property
    def message(self) -> str:
        """What a user is told."""
        return (
            f"the judge's mean score rose by {self.rise:.3f} while success fell by "
            f"{self.fall:.3f}: look at what the agent writes, it may satisfy the judge whatever "
            "the state (docs/judge.md)"
        )


def watch(config: AlarmConfig, history: Sequence[Mapping[str, float]]) -> Alarm | None:
    """Compares the later half of the last iterations with the earlier half.

    Args:
        config: Window and thresholds.
        history: Metrics of iterations, oldest first, the present one last; iterations without
            success or without any judge score are left out.

    Returns:
        None if it is switched off or the window is not full.
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
    sounds = rise >= config.min_rise and fall >= config.min_fall and rise > 0 and fall > 0
    return Alarm(rise, fall, correlation, sounds)
