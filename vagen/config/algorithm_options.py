"""The section `algorithm`: rewards, advantages, which episodes are learnt from."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from vagen.config.base import DIGEST_EXEMPT, Fraction, Section


class KLControl(Section):
    """Penalty in the reward for KL divergence from the reference policy."""

    type: Literal["fixed", "adaptive"] = "fixed"
    """`adaptive` steers the measured KL towards `target_kl`."""
    kl_coef: float = Field(default=0.001, ge=0.0)
    """Coefficient of the KL penalty; 0 switches it off and needs no reference model."""
    target_kl: PositiveFloat = 0.1
    """Target of the adaptive controller, nats per token."""
    horizon: PositiveInt = 10_000
    """Horizon of the adaptive controller, trajectories."""


class RewardNormalizationConfig(Section):
    """Normalisation of trajectory rewards before advantages are estimated (RAGEN)."""

    method: Literal["none", "mean", "mean_std", "asym_clip"] = "none"
    """`mean` subtracts the mean score, `mean_std` also divides by the standard deviation,
    `asym_clip` also clips to [-1, 3]."""
    grouping: Literal["group", "batch", "environment"] = "group"
    """Trajectories that share a mean: those of a level, of the batch, or of an environment."""


class RolloutFilterConfig(Section):
    """Keeps the levels whose trajectories differ most in score (StarPO-S) and drops the rest."""

    strategy: Literal["none", "top_k", "top_p", "min_p"] = "none"
    """By the standard deviation of a group's scores. `top_k`: the `value` share of groups with the
    largest. `top_p`: the fewest groups that hold the `value` share of the total. `min_p`: groups
    with at least `value` times the largest."""
    value: Annotated[float, Field(gt=0.0, le=1.0)] = 0.25
    """Share that `strategy` refers to."""
    top_p_prob_mode: Literal["linear", "softmax"] = "linear"
    """What `top_p` adds up: standard deviations over their sum, or their softmax."""
    include_zero: bool = False
    """Whether groups with equal scores may be kept."""
    loss_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Multiply advantages by the share of trajectories kept, or by its square root."""


class FilterGroupsConfig(Section):
    """Dynamic sampling (DAPO): groups whose trajectories are all alike are replaced."""

    max_num_gen_batches: PositiveInt = 1
    """Maximum rounds of play per iteration; a further round plays as many new levels as groups were
    alike. 1 is off."""
    metric: Literal["score", "success"] = "score"
    """What has to differ within a group; `score` excludes judge rewards."""


class OverlongConfig(Section):
    """Treatment of answers that reach `data.max_response_length` (DAPO)."""

    mask_truncated: bool = False
    """Exclude episodes with a cut answer or without tokens left from the update."""
    buffer_len: PositiveInt | None = None
    """Number of tokens before the limit in which a penalty grows linearly; null is off."""
    penalty_factor: PositiveFloat = 1.0
    """Penalty of an answer at the limit."""


class GiGPOConfig(Section):
    """Turn level of `gigpo`: compares turns that start from the same state."""

    step_advantage_weight: float = Field(default=1.0, ge=0.0)
    """Weight of the turn's advantage relative to the episode's."""
    gamma: Fraction = 0.95
    """Discount per turn of a turn's return."""
    normalization: Literal["mean", "mean_std"] = "mean"
    """`mean` subtracts the mean; `mean_std` also divides by the standard deviation."""


class AdaptiveCreditConfig(Section):
    """Options of the estimator `adaptive_credit`."""

    mode: Literal["lambda", "gamma"] = "lambda"
    """`lambda`: lambda per turn falls where the critic is calibrated. `gamma` (experimental): the
    discount follows progress between .85 and .995, which changes the objective."""
    lam_min: Fraction = 0.5
    """Lambda of a turn with perfectly calibrated values."""
    retired: ClassVar[dict[str, Any]] = {
        "ema_decay": 0.9,
        "gamma_low": 0.85,
        "gamma_high": 0.995,
        "gamma_slope": 1.0,
    }


class AlgorithmConfig(Section):
    """Advantage estimation."""

    adv_estimator: str = "bi_level_gae"
    """A name of `vagen.advantage.ESTIMATORS`, an entry point of an installed package (group
    `vagen.estimators`), or `module:function`."""
    gamma: Fraction = 1.0
    """Discount per token."""
    lam: Fraction = 1.0
    """GAE lambda per token, and per turn unless `high_level_lam` is set."""
    high_level_gamma: Fraction = 0.95
    """Discount per turn."""
    high_level_lam: Fraction | None = None
    """GAE lambda per turn; null takes `lam`."""
    bi_level_mix: Annotated[Fraction, DIGEST_EXEMPT] = 0.75
    """`variable_clock_gae`: weight of the recursion with discounts per turn; 0 is `masked_gae`."""
    kl_ctrl: KLControl = KLControl()
    truncation_bootstrap: bool = True
    """Bootstrap a truncated trajectory with the critic's value of its next state."""
    whitening: Annotated[Literal["batch", "environment"], DIGEST_EXEMPT] = "batch"
    """Normalise advantages over the batch or within each environment; the latter keeps one
    environment of a mixture from dominating."""
    reward_normalization: RewardNormalizationConfig = RewardNormalizationConfig()
    rollout_filter: RolloutFilterConfig = RolloutFilterConfig()
    filter_groups: Annotated[FilterGroupsConfig, DIGEST_EXEMPT] = FilterGroupsConfig()
    overlong: Annotated[OverlongConfig, DIGEST_EXEMPT] = OverlongConfig()
    gigpo: GiGPOConfig = GiGPOConfig()
    adaptive_credit: AdaptiveCreditConfig = AdaptiveCreditConfig()
