"""Options of the section `trainer`: length, validation, checks, guard, early end."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from vagen.config.base import DIGEST_EXEMPT, Fraction, Section


class GuardConfig(Section):
    """Watches each update and rolls back to the last good weights after a spike or a collapse."""

    enable: bool = False
    """Roll back; the values are logged in any case."""
    max_kl: PositiveFloat | None = 0.5
    """Largest |mean log-probability change| of an update, nats per token; null is no limit."""
    grad_norm_factor: PositiveFloat | None = 20.0
    """Largest gradient norm before clipping, as a multiple of its running median."""
    min_entropy: float | None = Field(default=0.01, ge=0.0)
    """Minimum entropy in nats per token; below it is a collapse."""
    max_entropy_factor: PositiveFloat | None = 3.0
    """Largest entropy, as a multiple of its running median."""
    max_invalid_rise: Fraction | None = 0.3
    """Largest rise of the share of invalid actions above its running median."""
    max_success_drop: Fraction | None = 0.3
    """Largest fall of training success below its running median."""
    min_reward_std_factor: Fraction | None = None
    """Minimum reward deviation within groups, as a multiple of its running median; below it is a
    collapse."""
    window: PositiveInt = 8
    """Good iterations in the running medians, which are used from the fourth on."""
    lr_factor: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Factor of the learning rates at every rollback; 1 keeps them, and the next iteration draws
    another batch."""
    max_rollbacks: PositiveInt = 10
    """Maximum rollbacks; one more ends the training with an error."""
    retired: ClassVar[dict[str, Any]] = {"min_history": 4}


class EarlyStopConfig(Section):
    """Ends a training that makes no progress (RAGEN v2); null switches a rule off."""

    min_reward_variance: Fraction | None = None
    """Minimum variance of scores within groups, as a share of its mean over the first ten
    iterations (.1 is usual)."""
    reward_variance_patience: PositiveInt = 10
    """Consecutive iterations below it."""
    min_val_success: Fraction | None = None
    """Minimum success on the validation levels (.01 is usual)."""
    val_success_patience: PositiveInt = 5
    """Consecutive validations below it."""
    empty_batches: Annotated[PositiveInt | None, DIGEST_EXEMPT] = None
    """Consecutive iterations in which the rollout filter keeps nothing (5 is usual)."""


class AgreementConfig(Section):
    """Compares the token probabilities of rollout and trainer.

    A run stops if they disagree in its first iteration; later disagreement raises an alarm.
    """

    enable: bool = True
    """Stop and raise alarms; the values are logged in any case."""
    max_ratio_error: PositiveFloat = 0.02
    """Largest distance from 1 of the mean of pi_trainer / pi_rollout, which rounding does not
    move."""
    min_correlation: float = Field(default=0.95, ge=-1.0, le=1.0)
    """Minimum correlation of the two probabilities; bfloat16 rounding leaves .99 or more."""


class TrainerConfig(Section):
    """Length of the run, validation and checks."""

    total_training_steps: PositiveInt = 40
    """Iterations; each is rollout, judge, advantage and update."""
    test_freq: int = Field(default=0, ge=0)
    """Iterations between evaluations on the validation levels; 0 is never."""
    select: Annotated[Literal["last", "best_validation"], DIGEST_EXEMPT] = "last"
    """Policy that is tested and registered at the end: the last, or the one with the highest
    validation success (the latest of equals)."""
    keep_iterations: Annotated[PositiveInt | None, DIGEST_EXEMPT] = None
    """Newest iterations whose episode batches are kept; what resuming needs is always kept. null
    keeps all."""
    critic_warmup: int = Field(default=0, ge=0)
    """First iterations that train only the critic."""
    format_probe: int | None = Field(default=None, ge=0)
    """Training levels per environment played first, to check that answers have the format that the
    prompt asks for; 0 is off. null: 20, but 0 for a tiny model."""
    format_probe_min: Fraction = 0.1
    """Minimum share of first answers with that format; below it the run stops."""
    agreement: AgreementConfig = AgreementConfig()
    guard: GuardConfig = GuardConfig()
    early_stop: EarlyStopConfig = EarlyStopConfig()
    template_collapse_freq: int = Field(default=0, ge=0)
    """Iterations between measurements of how much responses depend on their prompts (mutual
    information and retrieval accuracy, RAGEN v2); 0 is never."""
    template_collapse_samples: PositiveInt = 64
    """Turns per measurement; its cost grows with their square."""
    project_name: str = "vagen"
    """Name of the MLflow experiment."""

    def validates_after(self, iteration: int) -> bool:
        """Whether the validation levels are played after an iteration, counted from 0."""
        done = iteration + 1
        if done >= self.total_training_steps:
            return self.select == "best_validation"
        return bool(self.test_freq) and done % self.test_freq == 0
