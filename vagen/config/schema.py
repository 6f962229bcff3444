"""The experiment: what is learnt. Option names are those of VAGEN's documents."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt

from vagen.config.base import Section

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


def is_name(text: str) -> bool:
    """Whether a text may be part of file and metric names."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", text) is not None


def _named(text: str) -> str:
    if not is_name(text):
        raise ValueError("names of files and metrics are made of it; use letters, digits, `-`, `_`")
    return text


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", text):
        raise ValueError("use auto, cpu, cuda or cuda:N")
    return text


Name = Annotated[str, AfterValidator(_named)]


class EnvSpec(Section):
    """One environment of the training mixture."""

    env_name: str
    """Registered name, e.g. `FrozenLake` or `Sokoban`."""
    env_config: dict[str, Any] = Field(default_factory=dict)
    """Options of the environment's own class (`render_mode`, `prompt_format`, `size`, ...)."""
    train_size: PositiveInt = 10_000
    """Number of training levels (seeds)."""
    val_size: PositiveInt = 128
    """Number of validation levels, disjoint from the training levels by level hash."""
    test_size: PositiveInt = 256
    """Number of held-out test levels, disjoint from both by level hash."""


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


class AlgorithmConfig(Section):
    """Advantage estimation."""

    adv_estimator: str = "bi_level_gae"
    """A name of `vagen.advantage.ESTIMATORS`."""
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


class RolloutManagerConfig(Section):
    """Episodes."""

    max_turns: PositiveInt = 3
    """Model turns per episode; reaching it truncates."""
    window_size: PositiveInt | None = None
    """Turns of history in the prompt; null keeps all (one row per trajectory)."""
    n_trajectory: PositiveInt = 1
    """Trajectories per level: the group of group-relative estimators."""
    use_loss_mask: bool = True
    """Learn from sampled tokens only (M^loss)."""
    use_gae_mask: bool = True
    """Run the advantage recursion over sampled tokens only (M^adv)."""
    use_multi_turn_reward: bool = True
    """Place each turn's reward on its last token; otherwise their sum on the last token of all."""


class JudgeConfig(Section):
    """World-model reasoning reward."""

    use_state_reward: bool = True
    """Reward what the agent says it sees and predicts."""
    type: Literal["rule"] = "rule"
    """Which judge scores the statements."""
    observation_weight: float = Field(default=0.5, ge=0.0)
    """beta_s: reward of a fully right `<observation>`."""
    prediction_weight: float = Field(default=0.5, ge=0.0)
    """beta_w: reward of a fully right `<prediction>`."""


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


class ModelConfig(Section):
    """The policy's model."""

    path: str = "tiny:vl"
    """A local model directory, a hub id, or `tiny:vl` / `tiny:text` (built in code)."""


class ActorConfig(Section):
    """PPO update of the policy."""

    optim: OptimConfig = OptimConfig()
    ppo_mini_batch_size: PositiveInt = 32
    """Trajectories per optimizer step."""
    ppo_max_token_len: PositiveInt = 16_384
    """Tokens per micro batch (packed, not padded)."""
    ppo_epochs: PositiveInt = 1
    """Passes over the iteration's trajectories."""
    clip_ratio_low: float = Field(default=0.2, gt=0.0)
    """The probability ratio is clipped below at 1 minus this."""
    clip_ratio_high: float = Field(default=0.2, gt=0.0)
    """The probability ratio is clipped above at 1 plus this."""
    clip_ratio_c: Annotated[float, Field(gt=1.0)] | None = None
    """Dual clip for negative advantages (3 is usual); null is off."""
    entropy_coeff: float = Field(default=0.001, ge=0.0)
    """Weight of the entropy bonus."""
    loss_agg_mode: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"] = "token-mean"
    """How token losses become one: over all tokens, or per sequence first."""
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


class SamplingConfig(Section):
    """How tokens are drawn."""

    temperature: float = Field(default=0.7, ge=0.0)
    """0 is greedy."""
    top_p: float = Field(default=0.95, gt=0.0, le=1.0)
    """Smallest set of tokens with this probability; 1 is off."""
    top_k: int = Field(default=-1, ge=-1)
    """-1 is off."""


class RolloutConfig(SamplingConfig):
    """Sampling in training; `val_kwargs` in evaluation."""

    val_kwargs: SamplingConfig = SamplingConfig()
    """Sampling in evaluation."""
    max_concurrency: PositiveInt = 128
    """Trajectories generated side by side by the local engine."""


class ActorRolloutRefConfig(Section):
    """Policy: model, update and sampling."""

    model: ModelConfig = ModelConfig()
    actor: ActorConfig = ActorConfig()
    rollout: RolloutConfig = RolloutConfig()


class CriticConfig(Section):
    """Value model; it starts from the policy's weights with a fresh value head."""

    enable: bool | None = None
    """null: on exactly if the estimator reads values; anything that contradicts it is refused."""
    optim: OptimConfig = OptimConfig(lr=1e-5)
    ppo_mini_batch_size: PositiveInt | None = None
    """Trajectories per optimizer step; null takes the actor's."""
    ppo_epochs: PositiveInt = 1
    """Passes over the iteration's trajectories."""
    center_values: bool = False
    """Before each update, shift the value head's bias by the mean error of the values. A small
    critic otherwise spends its steps on the mean and loses what its backbone knew."""
    cliprange_value: PositiveFloat = 0.5
    """New values are clipped to this distance from the old ones."""
    grad_clip: PositiveFloat = 1.0
    """Gradients are scaled down to this norm."""
    grad_norm_threshold: PositiveFloat = 1000.0
    """A step whose gradient norm is not finite or at least this is skipped and counted."""
    use_reward_mask: bool = False
    """Value loss on end-of-turn tokens only (turn-wise estimators need it)."""


class WarmStartConfig(Section):
    """Supervised learning on expert episodes of training levels, before reinforcement learning."""

    steps: int = Field(default=0, ge=0)
    """0 skips the warm start."""
    batch_size: PositiveInt = 16
    """Expert episodes per step."""
    lr: PositiveFloat = 2e-3
    """Peak of the cosine schedule."""
    stop_at_loss: PositiveFloat | None = None
    """Stop as soon as the mean loss of the last 20 steps is at most this, nats per token. When a
    tiny model learns to see differs from seed to seed; this makes their starting points alike."""


class TrainerConfig(Section):
    """Length of the run and what is measured on the way."""

    total_training_steps: PositiveInt = 40
    """Iterations of rollout, judge, advantage, update."""
    test_freq: int = Field(default=0, ge=0)
    """Evaluate on the validation levels every this many iterations; 0 is never."""
    critic_warmup: int = Field(default=0, ge=0)
    """First iterations in which only the critic learns."""
    project_name: str = "vagen"
    """MLflow experiment."""


class ExperimentConfig(Section):
    """What is learnt: one YAML file under `experiments/` plus overrides."""

    name: Name
    """Short name; also the prefix of the run's folder."""
    preset: str | None = None
    """Name of an algorithm preset whose values are the defaults of this file."""
    seed: int = Field(default=0, ge=0)
    """Every random draw of the run is a function of it."""
    envs: dict[Name, EnvSpec]
    """Environments by config id; metrics are reported per id."""
    data: DataConfig = DataConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    rollout_manager: RolloutManagerConfig = RolloutManagerConfig()
    judge: JudgeConfig = JudgeConfig()
    actor_rollout_ref: ActorRolloutRefConfig = ActorRolloutRefConfig()
    critic: CriticConfig = CriticConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    trainer: TrainerConfig = TrainerConfig()


class InfraConfig(Section):
    """Where it runs and on what: one YAML file under `experiments/infra/`."""

    output_dir: str = "outputs"
    """Folder that receives one folder per run."""
    device: Annotated[str, AfterValidator(_device)] = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of weights and activations."""
    threads: PositiveInt | None = None
    """Torch threads; null takes every core."""
    mode: Literal["staged", "fused"] = "staged"
    """`staged`: every step is a pipeline task; `fused`: one task runs all iterations."""
    mlflow_tracking_uri: str | None = None
    """null: an SQLite file in `output_dir`; otherwise any MLflow server."""
