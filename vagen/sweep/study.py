"""The trials of a sweep and their results, stored by Optuna in the sweep's folder.

Optuna samples values and decides on early stopping. Its database is written trial by trial, so that
a restarted sweep knows finished, running and remaining trials. The values of a trial depend on the
sweep's seed and the trial's number (with `tpe` also on the results so far), not on time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vagen.sweep.schema import Range, Scalar, SweepConfig

if TYPE_CHECKING:
    import optuna

STUDY = "study.db"
"""File of the sweep's folder."""
_REASON, _MADE, _AGAIN = "reason", "made", "again"


@dataclass(frozen=True, slots=True)
class Trial:
    """One training of a sweep.

    Example: `Trial(number=3, name="lake-003", parameters={"seed": 1}, state="pruned", value=0.2)`.
    """

    number: int
    name: str
    """Name of its run."""
    parameters: Mapping[str, Scalar]
    state: str = "running"
    """`waiting` (to be retried), `running`, `complete`, `pruned` (stopped early) or `fail`."""
    value: float | None = None
    """Success for comparisons; None if it failed or is not finished."""
    reason: str = ""
    """Reason of a failure."""
    made: str = ""
    """Identifier of its run, once created."""
    validations: Mapping[int, float] = field(default_factory=dict)
    """Success on the validation levels by finished iterations, as reported to Optuna."""


class Study:
    """The trials of a sweep, used by one process at a time."""

    def __init__(self, folder: Path, config: SweepConfig, *, jobs: int) -> None:
        """Opens or creates the study in a folder."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._config = config
        self._jobs = jobs
        asha = config.asha
        self._study = optuna.create_study(
            storage=f"sqlite:///{folder / STUDY}",
            study_name=config.name,
            direction="maximize",
            load_if_exists=True,
            sampler=self._idle,
            pruner=optuna.pruners.SuccessiveHalvingPruner(
                min_resource=asha.min_iterations, reduction_factor=asha.reduction_factor
            )
            if asha
            else optuna.pruners.NopPruner(),
        )

    @property
    def trials(self) -> list[Trial]:
        """All started trials, by number."""
        return [self._read(each) for each in self._study.get_trials(deepcopy=False)]

    def unfinished(self) -> list[Trial]:
        """Trials that an earlier process started and did not finish, by number."""
        return [self._drawn(each.number) for each in self.trials if each.state == "running"]

    def draw(self) -> Trial | None:
        """Starts the next trial; None if there are enough."""
        known = self._study.get_trials(deepcopy=False)
        waiting = any(each.state.name == "WAITING" for each in known)
        again = sum(_AGAIN in each.user_attrs for each in known)
        if not waiting and len(known) >= self._config.size + again:
            return None
        return self._drawn(self._study.ask().number)

    def retry_failed(self) -> None:
        """Queues failed trials again with the same values, before all others."""
        known = self._study.get_trials(deepcopy=False)
        again = {each.user_attrs.get(_AGAIN) for each in known}
        for each in self.trials:
            if each.state == "fail" and each.number not in again:
                self._study.enqueue_trial(dict(each.parameters), user_attrs={_AGAIN: each.number})

    def record_made(self, trial: Trial, what: str) -> Trial:
        """Stores the identifier of the trial's run."""
        self._handle(trial.number).set_user_attr(_MADE, what)
        return self.read(trial.number)

    def report(self, trial: Trial, validations: Mapping[int, float]) -> bool:
        """Reports success by finished iterations; returns whether to stop the trial early."""
        known = self.read(trial.number).validations
        handle = self._handle(trial.number)
        for iterations, success in sorted(validations.items()):
            if iterations not in known:
                handle.report(success, iterations)
            if handle.should_prune():
                return True
        return False

    def complete(self, trial: Trial, value: float) -> None:
        """Records the success of a complete trial."""
        self._study.tell(trial.number, value)

    def prune(self, trial: Trial) -> None:
        """Records that a trial was stopped early; its success is that of the last validation."""
        self._study.tell(trial.number, state=self._optuna.trial.TrialState.PRUNED)

    def fail(self, trial: Trial, reason: str) -> None:
        """Records that a trial failed, and why."""
        self._handle(trial.number).set_user_attr(_REASON, reason)
        self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)

    def read(self, number: int) -> Trial:
        """The current state of a trial."""
        return self.trials[number]

    @cached_property
    def _idle(self) -> "optuna.samplers.BaseSampler":
        """An unused sampler: a grid's own cannot process results outside Optuna's loop."""
        return self._optuna.samplers.RandomSampler(seed=0)

    def _sampler(self, number: int) -> "optuna.samplers.BaseSampler":
        samplers, config = self._optuna.samplers, self._config
        seed = config.seed * 1_000_003 + number
        if config.sampler == "grid":
            return samplers.GridSampler(
                {key: list(values) for key, values in config.parameters.items()},  # type: ignore[arg-type]
                seed=config.seed,
            )
        if config.sampler == "random":
            return samplers.RandomSampler(seed=seed)
        return samplers.TPESampler(seed=seed, constant_liar=self._jobs > 1)

    def _drawn(self, number: int) -> Trial:
        """A trial with a value for each parameter; existing values stay."""
        self._study.sampler = self._sampler(number)
        try:
            handle = self._handle(number)
            for key, values in self._config.parameters.items():
                _suggest(handle, key, values)
        finally:
            self._study.sampler = self._idle
        return self.read(number)

    def _handle(self, number: int) -> "optuna.Trial":
        frozen = self._study.get_trials(deepcopy=False)[number]
        return self._optuna.Trial(self._study, frozen._trial_id)

    def _read(self, frozen: "optuna.trial.FrozenTrial") -> Trial:
        return Trial(
            number=frozen.number,
            name=f"{self._config.name}-{frozen.number:03d}",
            parameters={
                key: frozen.params[key] for key in self._config.parameters if key in frozen.params
            },
            state=frozen.state.name.lower(),
            value=frozen.value if frozen.state.is_finished() else None,
            reason=frozen.user_attrs.get(_REASON, ""),
            made=frozen.user_attrs.get(_MADE, ""),
            validations=frozen.intermediate_values,
        )


def _suggest(handle: "optuna.Trial", key: str, values: tuple[Scalar, ...] | Range) -> Any:
    if isinstance(values, tuple):
        return handle.suggest_categorical(key, values)
    options: dict[str, Any] = {"log": values.log}
    if values.step is not None:
        options["step"] = values.step
    suggest = handle.suggest_int if values.is_integer else handle.suggest_float
    return suggest(key, values.low, values.high, **options)  # type: ignore[arg-type]
