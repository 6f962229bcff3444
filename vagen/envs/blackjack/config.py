"""Options of Blackjack."""

from typing import ClassVar

from pydantic import Field, PositiveInt

from vagen.envs.config import EnvConfig
from vagen.envs.parsing import PromptFormat


class BlackjackConfig(EnvConfig):
    """Options of Blackjack."""

    reward_presets: ClassVar[dict[str, dict[str, float]]] = {
        "vagen-legacy": {
            **{"format": 0.5, "win": 1.0, "natural": 1.0, "draw": 0.0, "loss": -1.0},
            "invalid": -0.1,
        },
        "vagen-new": {
            **{"format": 0.1, "win": 1.0, "natural": 1.5, "draw": 0.0, "loss": -1.0},
            "invalid": 0.0,
        },
    }

    prompt_format: PromptFormat = "grounding_worldmodeling"
    """Reasoning strategy, with suffix `_structured` for structured state texts."""
    max_actions_per_step: PositiveInt = 1
    """Maximum actions in one response; the next card is seen before the next choice."""
    side: int = Field(300, ge=96, le=512)
    """Side of the image in pixels."""
