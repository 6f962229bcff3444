"""What a run has shown: validations on the way, and success at the end."""

from collections.abc import Mapping
from dataclasses import dataclass

from vagen.run import layout
from vagen.run.reading import committed, read_results
from vagen.run.run import Run


@dataclass(frozen=True, slots=True)
class TrialMeasurement:
    """What a run has shown.

    Example: `Measured({10: 0.25, 20: 0.5}, final=0.4375, best=True).value` is 0.5.
    """

    validations: Mapping[int, float]
    """Success on the validation levels by finished iterations."""
    final: float | None = None
    """Success on the test levels at the end; None before."""
    best: bool = False
    """Whether the training ends with its best policy, and not with its last one."""

    @property
    def value(self) -> float | None:
        """Success by which trials are compared: of the validation whose policy the training ends
        with; without any, that on the test levels.
        """
        if not self.validations:
            return self.final
        if self.best:
            return max(self.validations.values())
        return self.validations[max(self.validations)]


def measured(run: Run) -> TrialMeasurement:
    """What a run has shown so far."""
    folder = run.evaluation(layout.FINAL)
    final = (
        read_results(run.fetch(folder, layout.RESULTS))["success"] if committed(folder) else None
    )
    return TrialMeasurement(
        {iteration + 1: success for iteration, success in run.validations().items()},
        final,
        best=run.experiment.trainer.select == "best_validation",
    )
