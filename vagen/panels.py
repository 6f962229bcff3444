"""Plots of the learning curves; `vagen.metrics` assigns metrics to them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot of the learning curves."""

    title: str
    unit: str
    limits: tuple[float, float] | None = None
    training_only: bool = False
    """Whether it excludes metrics of validation and test."""
    full_names: bool = False
    """Whether the legend keeps the first part of a name."""


SUCCESS_PANEL = Panel("Success", "share of episodes", (0.0, 1.0), full_names=True)
SCORE_PANEL = Panel("Score and reward", "per episode")
TURNS_PANEL = Panel("Turns", "turns per episode", training_only=True)
ANSWERS_PANEL = Panel("Answers", "share of turns", (0.0, 1.0), training_only=True)
CUT_PANEL = Panel("What went wrong", "share", (0.0, 1.0), training_only=True)
JUDGE_PANEL = Panel("Judge", "score", (0.0, 1.0))
GRADIENT_PANEL = Panel("Gradient norm", "before clipping", full_names=True)
KL_PANEL = Panel("KL divergence", "nats per token")
ENTROPY_PANEL = Panel("Entropy", "nats per token")
CLIP_PANEL = Panel("Clipped tokens", "share of tokens")
VALUE_LOSS_PANEL = Panel("Value loss", "squared error / 2")
EXPLAINED_PANEL = Panel("Explained variance of the critic", "1 is perfect")
PANELS = (
    SUCCESS_PANEL,
    SCORE_PANEL,
    TURNS_PANEL,
    ANSWERS_PANEL,
    CUT_PANEL,
    JUDGE_PANEL,
    KL_PANEL,
    ENTROPY_PANEL,
    CLIP_PANEL,
    GRADIENT_PANEL,
    VALUE_LOSS_PANEL,
    EXPLAINED_PANEL,
)
"""All plots in the order of the figure."""
