"""Options of the section `data`: batches, token budgets, which levels."""

from typing import Annotated, Any, ClassVar

from pydantic import PositiveInt

from vagen.config.base import DIGEST_EXEMPT, Section


class CurriculumConfig(Section):
    """Draws training levels by learnability p (1 - p), where p is success. An episode's weight in p
    falls by a fifth per iteration; a fifth of the probability is spread evenly over all levels.
    """

    enable: bool = False
    """Draw levels of medium success more often; off: every level once per epoch."""
    buckets: PositiveInt = 5
    """Number of difficulty buckets per environment; success is counted per bucket."""
    retired: ClassVar[dict[str, Any]] = {"discount": 0.8, "uniform_share": 0.2}


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
