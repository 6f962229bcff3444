"""Options of the section `data`: batches, token budgets, which levels."""

from typing import Annotated

from pydantic import Field, PositiveInt

from vagen.config.base import DIGEST_EXEMPT, Fraction, Section


class CurriculumConfig(Section):
    """Draws training levels by learnability p (1 - p), where p is success."""

    enable: bool = False
    """Draw levels of medium success more often; off: every level once per epoch."""
    buckets: PositiveInt = 5
    """Number of difficulty buckets per environment; success is counted per bucket."""
    discount: Fraction = 0.8
    """Weight of an episode per iteration since it was played."""
    uniform_share: Annotated[Fraction, Field(gt=0.0)] = 0.2
    """Share of the probability that is spread evenly over all levels."""


class DataConfig(Section):
    """Batch sizes and token budgets."""

    train_batch_size: PositiveInt = 128
    """Distinct levels per iteration; trajectories are this times `rollout_manager.n_trajectory`."""
    max_prompt_length: PositiveInt = 1024
    """Maximum tokens of the system prompt and first observation; more is an error."""
    max_response_length: PositiveInt = 200
    """Maximum tokens sampled in one turn."""
    max_trajectory_length: PositiveInt = 2400
    """Maximum tokens of a trajectory; a turn that cannot fit truncates it."""
    curriculum: Annotated[CurriculumConfig, DIGEST_EXEMPT] = CurriculumConfig()
