"""The experiment: what is learnt. Option names are those of VAGEN's documents."""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt

from vagen.config.algorithm_options import AlgorithmConfig
from vagen.config.base import DIGEST_EXEMPT, Fraction, Section
from vagen.config.data_options import DataConfig
from vagen.config.judge_options import JudgeConfig
from vagen.config.trainer_options import TrainerConfig


def is_name(text: str) -> bool:
    """Whether a text may be part of file and metric names."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,149}", text) is not None


def _named(text: str) -> str:
    if not is_name(text):
        raise ValueError(
            "names of files and metrics are made of it; use at most 150 letters, digits, `-`, `_`"
        )
    return text


ExperimentName = Annotated[str, AfterValidator(_named)]


LevelCount = Annotated[int, Field(ge=1, le=1_000_000)]


class EnvSpec(Section):
    """One environment of the training mixture."""

    env_name: str
    """Registered name such as `FrozenLake`, or `module:Class`."""
    env_config: dict[str, Any] = Field(default_factory=dict)
    """Options of the environment's own class, such as `render_mode` or `size`."""
    train_size: LevelCount = 10_000
    """Number of training levels."""
    val_size: LevelCount = 128
    """Number of validation levels; none is a training level."""
    test_size: LevelCount = 256
    """Number of test levels; none is a training or validation level."""


class RolloutManagerConfig(Section):
    """How episodes are played and turned into training rows."""

    max_turns: PositiveInt = 3
    """Maximum number of model turns in an episode; an episode that reaches it is truncated."""
    context: Literal["concat", "no_concat", "window", "compact", "gate"] = "concat"
    """What the model sees. `concat`: all turns. `no_concat`: the current observation. `window`: the
    last `window_size` turns. `compact`: its own summary of earlier turns plus up to `window_size`
    turns. `gate`: all turns except observations that it drops."""
    window_size: PositiveInt | None = None
    """`window`: turns in the prompt, including the current one. `compact`: turns between summaries.
    `gate`: fewest turns of a row. null for other contexts."""
    compact_budget: Annotated[PositiveInt | None, DIGEST_EXEMPT] = None
    """`compact`: ask for a summary as soon as a turn as long as the last would bring the row to
    this many tokens, or after `window_size` turns. null: only after `window_size` turns."""
    keep_cost: Annotated[float, Field(ge=0.0), DIGEST_EXEMPT] = 0.0
    """`gate`: training reward subtracted from a turn whose observation is kept."""
    n_trajectory: PositiveInt = 1
    """Trajectories per level: the group size of group-relative estimators."""
    use_loss_mask: bool = True
    """Compute the loss on sampled tokens only (M^loss)."""
    use_gae_mask: bool = True
    """Run the advantage recursion over sampled tokens only (M^adv)."""
    use_multi_turn_reward: bool = True
    """Place each turn's reward on its last token; off: their sum on the last token of the
    trajectory."""
    reward_placement: Annotated[Literal["turn_end", "span"], DIGEST_EXEMPT] = "turn_end"
    """`turn_end`: a turn's whole reward on its last token. `span`: the judge's rewards on the last
    token of the section that they are for, and the parts of an environment's reward on the tokens
    that it names."""
    turn_reward_budget: Annotated[PositiveFloat | None, DIGEST_EXEMPT] = None
    """Replace the sum of an episode's format and judge rewards by this times their mean. null: the
    sum, as in the papers, with which delaying success can pay."""
    on_stalling: Annotated[Literal["warn", "refuse"], DIGEST_EXEMPT] = "warn"
    """What `build` does where winning in the last turn earns more than in the first."""
    whole_turns: Annotated[bool, DIGEST_EXEMPT] = False
    """Begin a turn only if `data.max_response_length` tokens fit; otherwise truncate the episode.
    Off: 8 tokens suffice."""
    thinking_budget: Annotated[PositiveInt | None, DIGEST_EXEMPT] = None
    """Sampled tokens after which a reasoning model's thought is closed. null: no limit."""
    one_step_off: bool = False
    """Play the next iteration's episodes with the old weights while the update runs. Needs `engine:
    verl` and `actor.tis_imp_ratio_cap`."""
    over_sampling_batch_size: Annotated[PositiveInt | None, DIGEST_EXEMPT] = None
    """Partial rollouts: levels played at once; a rollout ends when `data.train_batch_size` are
    finished, and the next one continues the others. null: wait for all. Needs `engine: verl` and
    `actor.tis_imp_ratio_cap`."""


class OptimConfig(Section):
    """Optimizer."""

    lr: PositiveFloat = 1e-6
    """AdamW learning rate."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """AdamW weight decay."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """Decay rates of Adam's first and second moments."""
    lr_warmup_steps: int = Field(default=0, ge=0)
    """Iterations of linear warm-up."""
    lr_scheduler_type: Annotated[Literal["constant", "cosine"], DIGEST_EXEMPT] = "constant"
    """Learning rate after the warm-up: constant, or half a cosine until the last iteration."""
    min_lr_ratio: Annotated[Fraction, DIGEST_EXEMPT] = 0.0
    """Final learning rate of `cosine`, as a share of `lr`."""


ALL_LINEAR = "all-linear"
"""In `target_modules`: every linear layer but the output layer."""


class LoraConfig(Section):
    """Low-rank adapters (peft) instead of training all weights.

    Checkpoints also hold the merged model.
    """

    lora_rank: int = Field(default=0, ge=0)
    """Rank; 0 trains all weights, as the warm start does in any case. The reference policy is the
    model without adapters."""
    lora_alpha: PositiveInt = 16
    """The adapter's output is scaled by this over the rank."""
    target_modules: str | tuple[str, ...] = ALL_LINEAR
    """Linear layers with an adapter: names (`q_proj`; `layers.2?.*_proj` for blocks 20 to 29), or
    `all-linear` (all except the output layer, vision tower included)."""


class ModelConfig(LoraConfig):
    """The policy's model."""

    path: str = "tiny:vl"
    """Local model directory, hub id, `gguf:FILE`, `pip:PACKAGE`, `smolvlm:SOURCE`, or a model built
    in code: `tiny:vl` or `tiny:text` (docs/models.md)."""
    freeze_vision_tower: Annotated[bool, DIGEST_EXEMPT] = False
    """Freeze the vision tower of policy and critic after the warm start. With adapters, use
    `target_modules` instead."""


class PolicyLossConfig(Section):
    """Policy-gradient loss; `clip_ratio_low` and `clip_ratio_high` bound its ratio."""

    loss_mode: Literal[
        "vanilla", "ppo_turn", "gspo", "gspo_turn", "cispo", "clip_cov", "kl_cov"
    ] = "vanilla"
    """`vanilla`: PPO, one ratio per token. `ppo_turn`: one per turn, the product of its tokens'.
    `gspo`, `gspo_turn`: one per row or turn, a geometric mean (`gspo` usually has clips near 3e-4
    and 4e-4). `cispo`: the clipped ratio weights the gradient. `clip_cov`, `kl_cov`: tokens whose
    log-probability and advantage covary most get no gradient, or a KL penalty instead of
    clipping."""
    clip_cov_ratio: Annotated[float, Field(gt=0.0, le=1.0), DIGEST_EXEMPT] = 0.0002
    """`clip_cov`: share of a mini-batch's tokens that get no gradient, at least one."""
    clip_cov_lb: Annotated[float, DIGEST_EXEMPT] = 1.0
    """`clip_cov`: lower bound of the covariance of those tokens."""
    clip_cov_ub: Annotated[float, DIGEST_EXEMPT] = 5.0
    """`clip_cov`: upper bound of the covariance of those tokens."""
    kl_cov_ratio: Annotated[float, Field(gt=0.0, le=1.0), DIGEST_EXEMPT] = 0.0002
    """`kl_cov`: share of a mini-batch's tokens with the penalty, those of largest covariance."""
    ppo_kl_coef: Annotated[float, Field(ge=0.0), DIGEST_EXEMPT] = 0.1
    """`kl_cov`: penalty per nat between a token's log-probability and the rollout's."""


class EntropyControl(Section):
    """Adjusts `entropy_coeff` to the measured entropy (Skywork-OR1)."""

    target: PositiveFloat | None = None
    """Target in nats per token: an update below it raises the coefficient by `step`, an update
    above it lowers it and has no bonus. null keeps `entropy_coeff`."""
    step: PositiveFloat = 0.005
    """Change of the coefficient per update."""
    max_coeff: PositiveFloat = 0.1
    """Largest coefficient; the smallest is 0."""


class ActorConfig(Section):
    """PPO update of the policy."""

    optim: OptimConfig = OptimConfig()
    ppo_mini_batch_size: PositiveInt = 32
    """Trajectories per optimizer step."""
    ppo_max_token_len: PositiveInt = 16_384
    """Tokens per micro-batch (packed, not padded)."""
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
    """Weight of the entropy bonus; the initial weight with `entropy_ctrl.target`."""
    entropy_ctrl: Annotated[EntropyControl, DIGEST_EXEMPT] = EntropyControl()
    loss_agg_mode: Literal[
        "token-mean",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
        "seq-mean-turn-sum",
        "trajectory-mean-token-sum",
        "trajectory-mean-token-mean",
    ] = "token-mean"
    """How token losses are averaged: over all tokens, or first per sequence (a row) or trajectory
    (all its rows). `seq-mean-turn-sum`: means over each turn's tokens, summed per row."""
    grad_clip: PositiveFloat = 1.0
    """Largest gradient norm; larger gradients are scaled down."""
    grad_norm_threshold: PositiveFloat = 1000.0
    """A step whose gradient norm is not finite or reaches this is skipped and counted."""
    use_kl_loss: bool = False
    """Add the KL divergence from the reference policy to the loss."""
    kl_loss_coef: float = Field(default=0.001, ge=0.0)
    """Weight of the KL loss."""
    kl_loss_type: Literal["k1", "low_var_kl", "mse"] = "low_var_kl"
    """KL estimator: `k1`, `low_var_kl` (k3) or `mse` (k2)."""
    use_rollout_log_probs: Annotated[bool | None, DIGEST_EXEMPT] = None
    """Use the rollout's log-probabilities as the old ones; the trainer recomputes a sample to
    compare. null: on with `engine: local`."""
    tis_imp_ratio_cap: PositiveFloat | None = None
    """Truncated importance weights: each token's loss is multiplied by min(pi_trainer / pi_rollout,
    this) (2 is usual); null is off."""


class SamplingConfig(Section):
    """Token sampling."""

    temperature: float = Field(default=0.7, ge=0.0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus sampling: smallest set of tokens with this probability; 1 is off. Keep it at 1 in
    training, because the trained distribution must be the sampled one (VAGEN: .95)."""
    top_k: int = Field(default=-1, ge=-1)
    """Number of most probable tokens to sample from; -1 is off."""

    @property
    def is_cut(self) -> bool:
        """Whether there are tokens that are never drawn, however probable."""
        return self.top_p < 1 or self.top_k > 0


class ValSamplingConfig(SamplingConfig):
    """Sampling in evaluation."""

    n: Annotated[PositiveInt, DIGEST_EXEMPT] = 1
    """Attempts per level. Success is their mean (mean@n); pass@k (at least one of k succeeds) and
    pass^k (all do) are reported for k = 1, 2, 4 … n."""


class RolloutConfig(SamplingConfig):
    """Sampling in training; `val_kwargs` in evaluation."""

    val_kwargs: ValSamplingConfig = ValSamplingConfig()
    """Sampling in evaluation."""
    max_concurrency: PositiveInt = 128
    """Trajectories generated in parallel by all rollout servers together."""


class ActorRolloutRefConfig(Section):
    """Policy: model, update and sampling."""

    model: ModelConfig = ModelConfig()
    actor: ActorConfig = ActorConfig()
    rollout: RolloutConfig = RolloutConfig()


class CriticConfig(Section):
    """Value model; it starts from the policy's weights with a new value head."""

    model: LoraConfig = LoraConfig()
    enable: bool | None = None
    """null: on if the estimator reads values; a value that contradicts it is refused."""
    optim: OptimConfig = OptimConfig(lr=1e-5)
    ppo_mini_batch_size: PositiveInt | None = None
    """Trajectories per optimizer step; null takes the actor's."""
    ppo_epochs: PositiveInt = 1
    """Passes over the iteration's trajectories."""
    warmup_epochs: Annotated[PositiveInt | None, DIGEST_EXEMPT] = None
    """Passes in the iterations of `trainer.critic_warmup`; null takes `ppo_epochs`. Values are not
    clipped in these iterations."""
    center_values: bool = False
    """Before each update, shift the value head's bias by the mean error of the values; helps a
    small critic."""
    cliprange_value: PositiveFloat | None = 0.5
    """Largest change of a value in an update, in units of the reward; null is off."""
    grad_clip: PositiveFloat = 1.0
    """Largest gradient norm; larger gradients are scaled down."""
    grad_norm_threshold: PositiveFloat = 1000.0
    """A step whose gradient norm is not finite or reaches this is skipped and counted."""
    use_reward_mask: bool = False
    """Value loss on end-of-turn tokens only; turn-wise estimators need it."""

    def epochs(self, *, warmup: bool) -> int:
        """Passes over the trajectories of an iteration, one of `trainer.critic_warmup` or later."""
        return (warmup and self.warmup_epochs) or self.ppo_epochs


class WarmStartConfig(Section):
    """Supervised learning on expert episodes of training levels, or on conversations, before
    reinforcement learning.
    """

    steps: int = Field(default=0, ge=0)
    """Optimizer steps; 0 skips the warm start."""
    data: Annotated[str | None, DIGEST_EXEMPT] = None
    """Conversations in place of the expert's episodes: path or URI of a file (docs/interop.md)."""
    episodes: Annotated[PositiveInt | None, DIGEST_EXEMPT] = None
    """Number of expert episodes to reuse, at least one batch; null: new episodes in each step.
    Of conversations: the first of the file; null: all."""
    batch_size: PositiveInt = 16
    """Expert episodes per step."""
    lr: PositiveFloat = 2e-3
    """Peak of the cosine learning-rate schedule; pretrained weights want a tenth of the default."""
    optimizer: Annotated[Literal["muon", "adamw"] | None, DIGEST_EXEMPT] = None
    """`muon` (inner matrices) or `adamw`; null: `muon` for models built in code, else `adamw`."""
    random_moves: Annotated[Fraction, DIGEST_EXEMPT] = 0.0
    """Share of expert turns with a random action and a true description of its effect, so that
    reinforcement learning teaches what to do."""
    retired: ClassVar[dict[str, Any]] = {"stop_at_loss": None}


class ExperimentConfig(Section):
    """What is learnt: one YAML file under `experiments/`, plus overrides."""

    name: ExperimentName
    """Short name and prefix of the run's folder."""
    preset: str | None = None
    """Algorithm preset whose values are the defaults of this file."""
    seed: int = Field(default=0, ge=0)
    """Seed of every random draw of the run."""
    envs: dict[ExperimentName, EnvSpec]
    """Environments by id; metrics are reported per id."""
    data: DataConfig = DataConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    rollout_manager: RolloutManagerConfig = RolloutManagerConfig()
    judge: JudgeConfig = JudgeConfig()
    actor_rollout_ref: ActorRolloutRefConfig = ActorRolloutRefConfig()
    critic: CriticConfig = CriticConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    trainer: TrainerConfig = TrainerConfig()


def has_reference(config: ExperimentConfig) -> bool:
    """Whether a reference policy is kept: for the KL in the reward or the KL loss."""
    return config.algorithm.kl_ctrl.kl_coef > 0 or config.actor_rollout_ref.actor.use_kl_loss


def trajectories_per_iteration(config: ExperimentConfig) -> int:
    """Episodes per iteration: levels times trajectories per level."""
    return config.data.train_batch_size * config.rollout_manager.n_trajectory


def context_window(config: ExperimentConfig) -> int | None:
    """Maximum turns in a prompt, with the current one, without summaries; None for all.

    A window that holds every turn of an episode is none, unless `compact_budget` may end a row
    earlier: no context is ever without the first turn, so the state a truncated episode stopped in
    is shown as `concat` shows it.
    """
    manager = config.rollout_manager
    window = {"concat": None, "no_concat": 1}.get(manager.context, manager.window_size)
    ends = window is not None and window < manager.max_turns
    return window if ends or manager.compact_budget is not None else None
