"""The judge's section of an experiment: what is rewarded, by which judge, and how it is guarded."""

from typing import Literal

from pydantic import Field

from vagen.config.base import Section


class JudgeConfig(Section):
    """World-model reasoning reward."""

    use_state_reward: bool = True
    """Reward what the agent says it sees and predicts."""
    type: Literal["rule"] = "rule"
    """Which judge scores the statements."""
    observation_weight: float = Field(default=0.5, ge=0.0)
    """beta_s: reward of a fully right `<observation>`."""
    prediction_weight: float = Field(default=0.5, ge=0.0)
    """beta_w: reward of a fully right `<prediction>`."""
