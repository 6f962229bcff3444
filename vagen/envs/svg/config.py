"""Options of SVG."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from vagen.envs.config import EnvConfig, Served
from vagen.envs.parsing import PromptFormat

ScorePart = Literal["structure", "colour", "edges", "dino", "dreamsim"]

SCORERS: dict[str, dict[ScorePart, float]] = {
    "embedded": {"structure": 0.3, "colour": 0.3, "edges": 0.4},
    "dino": {"dino": 1.0},
    "dreamsim": {"dreamsim": 1.0},
}
"""Weights of the parts of a score, by scorer."""


class SVGConfig(EnvConfig):
    """Options of SVG."""

    reward_presets: ClassVar[dict[str, dict[str, float]]] = {
        "vagen-legacy": {"format": 0.5, "score": 1.0, "improvement": 0.0},
        "vagen-new": {"format": 0.1, "score": 0.0, "improvement": 1.0},
    }

    prompt_format: PromptFormat = "free_think"
    """Reasoning strategy; there are no state texts to judge."""
    max_actions_per_step: PositiveInt = 1
    """Documents in one response: always 1."""
    action_sep: str = "~~"
    """Not used, since an answer has one document."""
    side: int = Field(256, ge=32, le=512)
    """Side of the images in pixels."""
    difficulty: tuple[int, int] = (1, 3)
    """Minimum and maximum level of the targets, from 1 to 5."""
    success_score: float = Field(0.9, gt=0.0, le=1.0)
    """Score that solves an episode."""
    scorer: Literal["embedded", "dino", "dreamsim", "weights"] = "embedded"
    """Image similarity: structure, colour and edges (`embedded`), a pretrained model, or the parts
    of `score_weights`."""
    score_weights: dict[ScorePart, float] | None = None
    """Weight of each part for `scorer: weights`; normalised by their sum."""
    dino_path: Annotated[str | None, Served()] = None
    """Model directory of DINOv2."""
    dreamsim_path: Annotated[str | None, Served()] = None
    """Model directory of DreamSim."""

    @model_validator(mode="after")
    def _can_draw(self) -> "SVGConfig":
        if self.max_actions_per_step != 1:
            raise ValueError("max_actions_per_step is 1: an answer is one document")
        least, most = self.difficulty
        if not 1 <= least <= most <= 5:
            raise ValueError(
                f"difficulty is the least and the greatest level, from 1 to 5; got {least}, {most}"
            )
        if (self.scorer == "weights") != (self.score_weights is not None):
            raise ValueError("score_weights goes with scorer = weights, and only with it")
        weights = self.part_weights
        if min(weights.values(), default=0.0) < 0 or sum(weights.values()) <= 0:
            raise ValueError("score_weights needs at least one weight above 0, and none below")
        folders: dict[ScorePart, str | None] = {
            "dino": self.dino_path,
            "dreamsim": self.dreamsim_path,
        }
        for part, folder in folders.items():
            if weights.get(part, 0.0) > 0 and folder is None:
                raise ValueError(f"{part} is scored by a model: name its directory in {part}_path")
        return self

    @property
    def part_weights(self) -> dict[ScorePart, float]:
        """Weight of each part of a score."""
        return SCORERS[self.scorer] if self.score_weights is None else self.score_weights
