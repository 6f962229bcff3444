"""Options of the section `data`: batches, token budgets, which levels."""

from typing import Annotated

from pydantic import Field, PositiveInt

from vagen.config.base import DIGEST_EXEMPT, Fraction, Section


class CurriculumConfig(Section):
    """Training levels drawn by what is to be learnt from them (learnability p (1 - p))."""

    enable: bool = False
    """Draw levels of medium success more often; off: every level once per epoch."""
    buckets: PositiveInt = 5
    """Parts of equal size of an environment's levels, by difficulty; equally hard levels share one.
    Success is counted per bucket."""
    discount: Fraction = 0.8
    """What an episode counts for, by iteration since: success is that of the recent policies."""
    uniform_share: Annotated[Fraction, Field(gt=0.0)] = 0.2
    """Share of the weight that all levels have alike, so that none is ever out of reach."""


class DataConfig(Section):
    """Batch sizes and token budgets."""

    train_batch_size: PositiveInt = 128
    """Distinct levels per iteration; trajectories = this times `rollout_manager.n_trajectory`."""
    max_prompt_length: PositiveInt = 1024
    """Most tokens the system prompt and the first observation may take; more is an error."""
    max_response_length: PositiveInt = 200
    """Most tokens one turn may sample."""
    max_trajectory_length: PositiveInt = 2400
    """Most tokens of a whole trajectory; a turn that could not fit ends it as truncated."""
    curriculum: Annotated[CurriculumConfig, DIGEST_EXEMPT] = CurriculumConfig()
