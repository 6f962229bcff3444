"""The experiment: what is learnt. Option names are those of VAGEN's documents."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt

from vagen.config.algorithm_options import AlgorithmConfig
from vagen.config.base import DIGEST_EXEMPT, Fraction, Section
from vagen.config.data_options import DataConfig
from vagen.config.judge_options import JudgeConfig
from vagen.config.trainer_options import TrainerConfig


def is_name(text: str) -> bool:
    """Whether a text may be part of file and metric names."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", text) is not None


def _named(text: str) -> str:
    if not is_name(text):
        raise ValueError("names of files and metrics are made of it; use letters, digits, `-`, `_`")
    return text


ExperimentName = Annotated[str, AfterValidator(_named)]


LevelCount = Annotated[int, Field(ge=1, le=1_000_000)]


class EnvSpec(Section):
    """One environment of the training mixture."""

    env_name: str
    """Registered name, e.g. `FrozenLake` or `Sokoban`."""
    env_config: dict[str, Any] = Field(default_factory=dict)
    """Options of the environment's own class (`render_mode`, `prompt_format`, `size`, ...)."""
    train_size: LevelCount = 10_000
    """Number of training levels (seeds)."""
    val_size: LevelCount = 128
    """Number of validation levels, disjoint from the training levels by level hash."""
    test_size: LevelCount = 256
    """Number of held-out test levels, disjoint from both by level hash."""


class RolloutManagerConfig(Section):
    """Episodes."""

    max_turns: PositiveInt = 3
    """Model turns per episode; reaching it truncates."""
    context: Literal["concat", "no_concat", "window", "compact", "gate"] = "concat"
    """What the model sees: all turns so far (one row per trajectory), the present observation only
    (one row per turn), the last `window_size` turns (one row per distinct context), its own
    summary of the turns before and up to `window_size` since (one row per summary), or all turns
    but the observations that it drops, of which a later row is rid (`gate`)."""
    window_size: PositiveInt | None = None
    """Turns in the prompt of `window`, the present one included; turns from one summary to the next
    of `compact`; fewest turns of a row of `gate`; null for the other contexts."""
    keep_cost: Annotated[float, Field(ge=0.0), DIGEST_EXEMPT] = 0.0
    """Taken from the reward of a turn of `gate` whose observation is kept, in training."""
    n_trajectory: PositiveInt = 1
    """Trajectories per level: the group of group-relative estimators."""
    use_loss_mask: bool = True
    """Learn from sampled tokens only (M^loss)."""
    use_gae_mask: bool = True
    """Run the advantage recursion over sampled tokens only (M^adv)."""
    use_multi_turn_reward: bool = True
    """Place each turn's reward on its last token; otherwise their sum on the last token of all."""
    turn_reward_budget: Annotated[PositiveFloat | None, DIGEST_EXEMPT] = None
    """An episode's format and judge rewards are worth those of so many turns, however long it is:
    this times their mean. null: their sum, as the papers have it, which pays for turns: who can win
    earns more by not winning yet."""
    on_stalling: Annotated[Literal["warn", "refuse"], DIGEST_EXEMPT] = "warn"
    """What `build` does where winning in the last turn earns more than in the first."""
    whole_turns: Annotated[bool, DIGEST_EXEMPT] = False
    """Begin a turn only if there is room for `data.max_response_length` tokens, so that no answer
    is cut shorter than the others; what has no room ends as truncated. Off: for 8 tokens."""
    one_step_off: bool = False
    """Play the next iteration's episodes while this one's update runs, with the weights from before
    it. Needs the verl engine and `actor.tis_imp_ratio_cap`."""
    over_sampling_batch_size: Annotated[PositiveInt | None, DIGEST_EXEMPT] = None
    """Partial rollouts: so many levels are played at a time, a rollout ends when
    `data.train_batch_size` of them are finished, and the next one carries the others on. null: a
    rollout waits for all it has begun. Needs the verl engine and `actor.tis_imp_ratio_cap`."""


class OptimConfig(Section):
    """Optimizer."""

    lr: PositiveFloat = 1e-6
    """AdamW's step size."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """AdamW's weight decay."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """Decay of Adam's first and second moments."""
    lr_warmup_steps: int = Field(default=0, ge=0)
    """Iterations of linear warm-up."""
    lr_scheduler_type: Annotated[Literal["constant", "cosine"], DIGEST_EXEMPT] = "constant"
    """What the step size does after it: stay, or fall along half a cosine until the last of
    `trainer.total_training_steps` iterations."""
    min_lr_ratio: Annotated[Fraction, DIGEST_EXEMPT] = 0.0
    """Share of the step size that `cosine` ends with."""


class LoraConfig(Section):
    """Low-rank adapters (peft) instead of training all weights; checkpoints hold the model with
    the adapters merged as well.
    """

    lora_rank: int = Field(default=0, ge=0)
    """Rank; 0 trains all weights. The warm start trains all weights in any case, adapters are put
    on its result. With adapters the reference policy is the model without them, not a copy."""
    lora_alpha: PositiveInt = 16
    """The adapter's output is scaled by this over the rank."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Linear layers that get an adapter: names such as `q_proj`, or `all-linear`: every one but the
    output layer, those of a vision tower too."""


class ModelConfig(LoraConfig):
    """The policy's model."""

    path: str = "tiny:vl"
    """A local model directory, a hub id, or `tiny:vl` / `tiny:text` (built in code)."""
    freeze_vision_tower: Annotated[bool, DIGEST_EXEMPT] = False
    """The vision tower, of the critic too, stays as the warm start left it: no gradients, no
    moments. With adapters `target_modules` says what learns instead."""


class PolicyLossConfig(Section):
    """Which policy-gradient loss; `clip_ratio_low` and `clip_ratio_high` bound its ratio."""

    loss_mode: Literal["vanilla", "gspo", "gspo_turn", "cispo", "clip_cov", "kl_cov"] = "vanilla"
    """`vanilla`: PPO's, a ratio per token. `gspo`: one per row, the geometric mean of its tokens'
    (clips near 3e-4 and 4e-4 are usual). `gspo_turn`: the same per turn. `cispo`: PPO's ratio,
    clipped, is the weight of the gradient, which no token loses. `clip_cov`, `kl_cov`: against the
    loss of entropy, tokens whose log-probability and advantage covary teach nothing; or nothing is
    clipped and they pay for the way that they go."""
    clip_cov_ratio: Annotated[float, Field(gt=0.0, le=1.0), DIGEST_EXEMPT] = 0.0002
    """Share of a mini batch's tokens that `clip_cov` leaves out, one at the least."""
    clip_cov_lb: Annotated[float, DIGEST_EXEMPT] = 1.0
    """It draws them among those of a larger covariance than this,"""
    clip_cov_ub: Annotated[float, DIGEST_EXEMPT] = 5.0
    """and a smaller one than this."""
    kl_cov_ratio: Annotated[float, Field(gt=0.0, le=1.0), DIGEST_EXEMPT] = 0.0002
    """Share of a mini batch's tokens, those of the largest covariance, that pay in `kl_cov`."""
    ppo_kl_coef: Annotated[float, Field(ge=0.0), DIGEST_EXEMPT] = 0.1
    """What they pay per nat between a token's log-probability and that of the rollout."""


class EntropyControl(Section):
    """Control of `entropy_coeff` by the measured entropy (Skywork-OR1)."""

    target: PositiveFloat | None = None
    """Nats per token: each update below it raises the coefficient by `step`, each above it lowers
    the coefficient, and there is no bonus meanwhile. null keeps `entropy_coeff`."""
    step: PositiveFloat = 0.005
    """By how much an update moves the coefficient."""
    max_coeff: PositiveFloat = 0.1
    """It stays between 0 and this."""


class ActorConfig(Section):
    """PPO update of the policy."""

    optim: OptimConfig = OptimConfig()
    ppo_mini_batch_size: PositiveInt = 32
    """Trajectories per optimizer step."""
    ppo_max_token_len: PositiveInt = 16_384
    """Tokens per micro batch (packed, not padded)."""
    ppo_epochs: PositiveInt = 1
    """Passes over the iteration's trajectories."""
    policy_loss: Annotated[PolicyLossConfig, DIGEST_EXEMPT] = PolicyLossConfig()
    clip_ratio_low: float = Field(default=0.2, gt=0.0)
    """The probability ratio is clipped below at 1 minus this."""
    clip_ratio_high: float = Field(default=0.2, gt=0.0)
    """The probability ratio is clipped above at 1 plus this."""
    clip_ratio_c: Annotated[float, Field(gt=1.0)] | None = None
    """Dual clip for negative advantages (3 is usual); null is off."""
    entropy_coeff: float = Field(default=0.001, ge=0.0)
    """Weight of the entropy bonus; with `entropy_ctrl.target` the first one."""
    entropy_ctrl: Annotated[EntropyControl, DIGEST_EXEMPT] = EntropyControl()
    loss_agg_mode: Literal[
        "token-mean",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
        "trajectory-mean-token-sum",
        "trajectory-mean-token-mean",
    ] = "token-mean"
    """How token losses become one: over all tokens, or per sequence (a row) or trajectory (all its
    rows) first. The last two differ only where a context makes several rows of a trajectory."""
    grad_clip: PositiveFloat = 1.0
    """Gradients are scaled down to this norm."""
    grad_norm_threshold: PositiveFloat = 1000.0
    """A step whose gradient norm is not finite or at least this is skipped and counted."""
    use_kl_loss: bool = False
    """Add the KL divergence from the reference policy to the loss."""
    kl_loss_coef: float = Field(default=0.001, ge=0.0)
    """Weight of that term."""
    kl_loss_type: Literal["k1", "low_var_kl", "mse"] = "low_var_kl"
    """Its estimator: `k1`, `low_var_kl` (k3) or `mse` (k2)."""
    use_rollout_log_probs: Annotated[bool | None, DIGEST_EXEMPT] = None
    """The rollout's log-probabilities are the old ones, and the trainer computes those of a sample
    only, to compare; null: where both are the same engine (`local`)."""
    tis_imp_ratio_cap: PositiveFloat | None = None
    """Truncated importance weights: each token's loss is multiplied by
    min(pi_trainer / pi_rollout, this) (2 is usual); null is off."""


class SamplingConfig(Section):
    """How tokens are drawn."""

    temperature: float = Field(default=0.7, ge=0.0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Smallest set of tokens with this probability; 1 is off, as what is learnt from has to be
    drawn from the distribution that learns (VAGEN samples with .95)."""
    top_k: int = Field(default=-1, ge=-1)
    """-1 is off."""

    @property
    def is_cut(self) -> bool:
        """Whether there are tokens that are never drawn, however probable."""
        return self.top_p < 1 or self.top_k > 0


class ValSamplingConfig(SamplingConfig):
    """Sampling in evaluation."""

    n: Annotated[PositiveInt, DIGEST_EXEMPT] = 1
    """Attempts at each level. Success is their mean (mean@n); pass@k (at least one of k succeeds)
    and pass^k (all of them do) are reported for k = 1, 2, 4 … n."""


class RolloutConfig(SamplingConfig):
    """Sampling in training; `val_kwargs` in evaluation."""

    val_kwargs: ValSamplingConfig = ValSamplingConfig()
    """Sampling in evaluation."""
    max_concurrency: PositiveInt = 128
    """Trajectories generated side by side, by all rollout servers together."""


class ActorRolloutRefConfig(Section):
    """Policy: model, update and sampling."""

    model: ModelConfig = ModelConfig()
    actor: ActorConfig = ActorConfig()
    rollout: RolloutConfig = RolloutConfig()


class CriticConfig(Section):
    """Value model; it starts from the policy's weights with a fresh value head."""

    model: LoraConfig = LoraConfig()
    enable: bool | None = None
    """null: on exactly if the estimator reads values; anything that contradicts it is refused."""
    optim: OptimConfig = OptimConfig(lr=1e-5)
    ppo_mini_batch_size: PositiveInt | None = None
    """Trajectories per optimizer step; null takes the actor's."""
    ppo_epochs: PositiveInt = 1
    """Passes over the iteration's trajectories."""
    warmup_epochs: Annotated[PositiveInt | None, DIGEST_EXEMPT] = None
    """Passes in the iterations of `trainer.critic_warmup`; null takes `ppo_epochs`. Values are not
    clipped then: no policy learns from them yet."""
    center_values: bool = False
    """Before each update, shift the value head's bias by the mean error of the values. A small
    critic otherwise spends its steps on the mean and loses what its backbone knew."""
    cliprange_value: PositiveFloat | None = 0.5
    """New values are clipped to this distance from the old ones, in units of the reward; null is
    off. No value moves further in an update, however far off it is."""
    grad_clip: PositiveFloat = 1.0
    """Gradients are scaled down to this norm."""
    grad_norm_threshold: PositiveFloat = 1000.0
    """A step whose gradient norm is not finite or at least this is skipped and counted."""
    use_reward_mask: bool = False
    """Value loss on end-of-turn tokens only (turn-wise estimators need it)."""

    def epochs(self, *, warmup: bool) -> int:
        """Passes over the trajectories of an iteration, one of `trainer.critic_warmup` or later."""
        return (warmup and self.warmup_epochs) or self.ppo_epochs


class WarmStartConfig(Section):
    """Supervised learning on expert episodes of training levels, before reinforcement learning."""

    steps: int = Field(default=0, ge=0)
    """0 skips the warm start."""
    episodes: Annotated[PositiveInt | None, DIGEST_EXEMPT] = None
    """Expert episodes that are learnt from, at least one batch: further steps go through the same
    ones again. null: each step has new ones."""
    batch_size: PositiveInt = 16
    """Expert episodes per step."""
    lr: PositiveFloat = 2e-3
    """Peak of the cosine schedule."""
    random_moves: Annotated[Fraction, DIGEST_EXEMPT] = 0.0
    """Share of the expert's turns that play an action drawn at random and tell as truly what it
    leads to: the policy learns to see and to speak, and what to do is left to reinforcement."""
    stop_at_loss: PositiveFloat | None = None
    """Stop as soon as the mean loss of the last 20 steps is at most this, nats per token. When a
    tiny model learns to see differs from seed to seed; this makes their starting points alike."""


class ExperimentConfig(Section):
    """What is learnt: one YAML file under `experiments/` plus overrides."""

    name: ExperimentName
    """Short name; also the prefix of the run's folder."""
    preset: str | None = None
    """Name of an algorithm preset whose values are the defaults of this file."""
    seed: int = Field(default=0, ge=0)
    """Every random draw of the run is a function of it."""
    envs: dict[ExperimentName, EnvSpec]
    """Environments by config id; metrics are reported per id."""
    data: DataConfig = DataConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    rollout_manager: RolloutManagerConfig = RolloutManagerConfig()
    judge: JudgeConfig = JudgeConfig()
    actor_rollout_ref: ActorRolloutRefConfig = ActorRolloutRefConfig()
    critic: CriticConfig = CriticConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    trainer: TrainerConfig = TrainerConfig()
