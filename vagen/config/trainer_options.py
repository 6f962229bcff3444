"""Options of the section `trainer`: length, validation, checks, guard, early end."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from vagen.config.base import DIGEST_EXEMPT, Fraction, Section


class GuardConfig(Section):
    """Watches each update; on a spike or a collapse it rolls back to the last good weights."""

    enable: bool = False
    """Whether it acts; what it watches is logged in any case."""
    max_kl: PositiveFloat | None = 0.5
    """Largest |mean log-probability change| of an update, nats per token; null is no limit."""
    grad_norm_factor: PositiveFloat | None = 20.0
    """Largest gradient norm before clipping, as a multiple of its running median."""
    min_entropy: float | None = Field(default=0.01, ge=0.0)
    """Entropy below it (nats per token) is a collapse."""
    max_entropy_factor: PositiveFloat | None = 3.0
    """Largest entropy, as a multiple of its running median."""
    max_invalid_rise: Fraction | None = 0.3
    """Largest rise of the share of invalid actions over its running median."""
    max_success_drop: Fraction | None = 0.3
    """Largest fall of training success below its running median."""
    min_reward_std_factor: Fraction | None = None
    """In-group reward deviation below this multiple of its running median is a collapse."""
    window: PositiveInt = 8
    """Good iterations that the running medians are over."""
    min_history: PositiveInt = 4
    """Good iterations before medians are compared with."""
    lr_factor: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Learning rates are multiplied by it at every rollback; 1 leaves them and the next iteration
    just draws another batch."""
    max_rollbacks: PositiveInt = 10
    """More than this many end the training with an error."""


class EarlyStopConfig(Section):
    """Ends training where going on is pointless (RAGEN v2); null switches a rule off."""

    min_reward_variance: Fraction | None = None
    """Variance of scores in a group, as a share of its mean over the first ten iterations (.1)."""
    reward_variance_patience: PositiveInt = 10
    """Consecutive iterations below it."""
    min_val_success: Fraction | None = None
    """Success on the validation levels (.01)."""
    val_success_patience: PositiveInt = 5
    """Consecutive validations below it."""
    empty_batches: Annotated[PositiveInt | None, DIGEST_EXEMPT] = None
    """Consecutive iterations of which the rollout filter kept nothing (5)."""


class AgreementConfig(Section):
    """Compares the probabilities of sampled tokens in the rollout with the trainer's: a run whose
    first iteration shows two different policies is stopped, later ones sound an alarm.
    """

    enable: bool = True
    """Whether it stops and sounds; what it watches is logged in any case."""
    max_ratio_error: PositiveFloat = 0.02
    """Largest distance from 1 of the mean of pi_trainer / pi_rollout. Of engines that agree it is 1
    whatever their rounding; tokens that only one of them rules out move it."""
    min_correlation: float = Field(default=0.95, ge=-1.0, le=1.0)
    """Least correlation of the two probabilities. Rounding to bfloat16 leaves .99 or more."""


class TrainerConfig(Section):
    """Length of the run and what is measured on the way."""

    total_training_steps: PositiveInt = 40
    """Iterations of rollout, judge, advantage, update."""
    test_freq: int = Field(default=0, ge=0)
    """Evaluate on the validation levels every this many iterations; 0 is never."""
    select: Annotated[Literal["last", "best_validation"], DIGEST_EXEMPT] = "last"
    """Which policy the training ends with, is tested and registered: the last one, or of those that
    were validated the one with the highest success (of equals the latest)."""
    keep_iterations: Annotated[PositiveInt | None, DIGEST_EXEMPT] = None
    """Newest iterations whose batches of episodes stay, on the disk and in the store; what older
    ones have measured stays, and those that a checkpoint's successors could be learnt again from.
    null keeps all."""
    critic_warmup: int = Field(default=0, ge=0)
    """First iterations in which only the critic learns."""
    format_probe: int | None = Field(default=None, ge=0)
    """Training levels of each environment that are played before anything else; 0 is none. Their
    first answers must have the layout that the prompt asks for, or the run stops. null: 20, and
    none for a tiny model, which knows no layout but that of its warm start."""
    format_probe_min: Fraction = 0.1
    """Least share of them that have it. A policy that keeps it three times in ten passes in 99 of
    100 runs, one that keeps it once in a hundred in 2."""
    agreement: AgreementConfig = AgreementConfig()
    guard: GuardConfig = GuardConfig()
    early_stop: EarlyStopConfig = EarlyStopConfig()
    template_collapse_freq: int = Field(default=0, ge=0)
    """Measure every this many iterations how much responses depend on their prompts (mutual
    information and retrieval accuracy, RAGEN v2); 0 is never."""
    template_collapse_samples: PositiveInt = 64
    """Turns in that measurement; its cost grows with the square."""
    project_name: str = "vagen"
    """MLflow experiment."""

    def validates_after(self, iteration: int) -> bool:
        """Whether the validation levels are played after an iteration, counted from 0."""
        done = iteration + 1
        if done >= self.total_training_steps:
            return self.select == "best_validation"
        return bool(self.test_freq) and done % self.test_freq == 0
