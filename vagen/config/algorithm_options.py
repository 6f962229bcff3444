"""The section `algorithm`: rewards, advantages, which episodes are learnt from."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from vagen.config.base import DIGEST_EXEMPT, Fraction, Section


class KLControl(Section):
    """KL-in-reward controller."""

    type: Literal["fixed", "adaptive"] = "fixed"
    """`adaptive` steers the measured KL towards `target_kl`."""
    kl_coef: float = Field(default=0.001, ge=0.0)
    """Coefficient of the KL penalty in the reward; 0 switches the reference model off."""
    target_kl: PositiveFloat = 0.1
    """Target of the adaptive controller, nats per token."""
    horizon: PositiveInt = 10_000
    """Horizon of the adaptive controller, trajectories."""


class RewardNormalizationConfig(Section):
    """Normalisation of each trajectory's rewards before advantages are estimated (RAGEN)."""

    method: Literal["none", "mean", "mean_std", "asym_clip"] = "none"
    """`mean` subtracts the mean score, `mean_std` also divides by the standard deviation,
    `asym_clip` clips the result of `mean_std` to [-1, 3]."""
    grouping: Literal["group", "batch", "environment"] = "group"
    """Whose mean: of the trajectories of one level, of the whole batch, or of an environment's part
    of it."""


class RolloutFilterConfig(Section):
    """Keeps the levels whose trajectories differ most in score (StarPO-S), drops the rest."""

    strategy: Literal["none", "top_k", "top_p", "min_p"] = "none"
    """By the standard deviation of scores in a group: the `value` share of groups with the largest
    (`top_k`), the fewest groups that hold the `value` share of the total (`top_p`), or all with at
    least `value` times the largest (`min_p`)."""
    value: Annotated[float, Field(gt=0.0, le=1.0)] = 0.25
    """Share of groups, of the total, or of the largest; see `strategy`."""
    top_p_prob_mode: Literal["linear", "softmax"] = "linear"
    """What `top_p` adds up: standard deviations over their sum, or their softmax."""
    include_zero: bool = False
    """Whether groups whose scores are all equal may be kept."""
    loss_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Advantages are multiplied by the share of trajectories kept, or by its square root."""


class FilterGroupsConfig(Section):
    """Dynamic sampling (DAPO): groups whose trajectories are all alike are replaced by others."""

    max_num_gen_batches: PositiveInt = 1
    """Most times that an iteration plays: first its batch, then as many groups of further training
    levels as were all alike. What is missing after that many is filled up with such groups. 1 is
    off."""
    metric: Literal["score", "success"] = "score"
    """What has to differ within a group; `score` is that before the judge."""


class OverlongConfig(Section):
    """What becomes of answers that run into `data.max_response_length` (DAPO)."""

    mask_truncated: bool = False
    """Do not learn from episodes in which an answer was cut off or tokens ran out, as little as
    from what the rollout filter drops."""
    buffer_len: PositiveInt | None = None
    """Last tokens before the limit in which an answer is penalised, the more the longer; null is
    off."""
    penalty_factor: PositiveFloat = 1.0
    """Reward that an answer at the limit loses."""


class GiGPOConfig(Section):
    """Second level of `gigpo`: turns that start from the same state are compared."""

    step_advantage_weight: float = Field(default=1.0, ge=0.0)
    """Weight of the turn's advantage beside the episode's."""
    gamma: Fraction = 0.95
    """Discount per turn of a turn's return."""
    normalization: Literal["mean", "mean_std"] = "mean"
    """Whether differences from the mean are divided by the standard deviation."""


class AdaptiveCreditConfig(Section):
    """What `adaptive_credit` adapts."""

    mode: Literal["lambda", "gamma"] = "lambda"
    """`lambda`: lambda per turn falls where the critic has proven calibrated. `gamma`
    (experimental): the discount follows progress, which changes the objective."""
    ema_decay: Fraction = 0.9
    """Decay of the running moments, per iteration."""
    lam_min: Fraction = 0.5
    """Lambda of a turn whose values are perfectly calibrated."""
    gamma_low: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.85
    """Lower limit of the discount (`gamma`)."""
    gamma_high: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.995
    """Upper limit of the discount (`gamma`)."""
    gamma_slope: float = Field(default=1.0, ge=0.0)
    """How strongly progress moves the discount (`gamma`); 0 keeps `high_level_gamma`."""


class AlgorithmConfig(Section):
    """Advantage estimation."""

    adv_estimator: str = "bi_level_gae"
    """A name of `vagen.advantage.ESTIMATORS`, that of an installed package's entry point (group
    `vagen.estimators`), or `module:function` of your own."""
    gamma: Fraction = 1.0
    """Discount per token."""
    lam: Fraction = 1.0
    """GAE lambda per token (and per turn unless `high_level_lam` is given)."""
    high_level_gamma: Fraction = 0.95
    """Discount per turn."""
    high_level_lam: Fraction | None = None
    """GAE lambda per turn; null takes `lam`."""
    kl_ctrl: KLControl = KLControl()
    truncation_bootstrap: bool = True
    """Bootstrap a truncated trajectory with the critic's value of its next state."""
    whitening: Annotated[Literal["batch", "environment"], DIGEST_EXEMPT] = "batch"
    """Whether advantages are shifted and scaled over the whole batch, or over each environment's
    part of it, so that none of a mixture drowns another's."""
    reward_normalization: RewardNormalizationConfig = RewardNormalizationConfig()
    rollout_filter: RolloutFilterConfig = RolloutFilterConfig()
    filter_groups: Annotated[FilterGroupsConfig, DIGEST_EXEMPT] = FilterGroupsConfig()
    overlong: Annotated[OverlongConfig, DIGEST_EXEMPT] = OverlongConfig()
    gigpo: GiGPOConfig = GiGPOConfig()
    adaptive_credit: AdaptiveCreditConfig = AdaptiveCreditConfig()
