"""Results of a run so far: validations, and success at the end."""

from collections.abc import Mapping
from dataclasses import dataclass

from vagen.run import layout
from vagen.run.folder import committed, read_results
from vagen.run.run import Run


@dataclass(frozen=True, slots=True)
class TrialMeasurement:
    """Results of a run so far.

    Example: `TrialMeasurement({10: 0.25, 20: 0.5}, final=0.4375, best=True).value` is 0.5.
    """

    validations: Mapping[int, float]
    """Success on the validation levels by finished iterations."""
    final: float | None = None
    """Success on the test levels at the end; None before."""
    best: bool = False
    """Whether the training ends with its best policy instead of its last one."""

    @property
    def value(self) -> float | None:
        """Success for comparing trials: of the validation of the final policy; without validations,
        on the test levels.
        """
        if not self.validations:
            return self.final
        if self.best:
            return max(self.validations.values())
        return self.validations[max(self.validations)]


def measured(run: Run) -> TrialMeasurement:
    """Results of a run so far."""
    folder = run.evaluation(layout.FINAL)
    final = (
        read_results(run.fetch(folder, layout.RESULTS))["success"] if committed(folder) else None
    )
    return TrialMeasurement(
        {iteration + 1: success for iteration, success in run.validations().items()},
        final,
        best=run.experiment.trainer.select == "best_validation",
    )
