"""The guard of a run: its state between iterations, and rollbacks.

Its state is in the manifest of each update, so that a resumed run continues with the same numbers.
The weights for a rollback are in a checkpoint that is kept.
"""

from typing import Any

from vagen import progress, steps
from vagen.engines.base import Engine
from vagen.learning.guard import Guard, GuardState, MetricValues
from vagen.run.run import Run
from vagen.stages.weights import engine_at
from vagen.steps import version_after, version_before
from vagen.storage import read_manifest


class Watch:
    """Watches one iteration's update: `may_learn`, `judge_update`, `must_roll_back`, `roll_back`.

    Args:
        run: The run.
        iteration: Number of the iteration; the update before it is committed.
        rollout: Metrics of the iteration's earlier steps.
    """

    def __init__(self, run: Run, iteration: int, rollout: MetricValues):
        self._run = run
        self._iteration = iteration
        self._rollout = dict(rollout)
        self._update: dict[str, float] | None = None
        self._guard = Guard(run.experiment.trainer.guard, _state_before(run, iteration))
        self._acts = run.experiment.trainer.guard.enable
        self._verdict = self._guard.judge_rollout(self._rollout)
        self._rollback: dict[str, Any] | None = None

    @property
    def may_learn(self) -> bool:
        """Whether to learn from the batch; False if the policy has collapsed."""
        return self._verdict.ok or not self._acts

    @property
    def must_roll_back(self) -> bool:
        """Whether to undo this iteration."""
        return self._acts and not self._verdict.ok

    @property
    def good(self) -> str:
        """Version of the weights for a rollback; empty without rollbacks."""
        return self._guard.state.good if self._acts else ""

    def judge_update(self, metrics: MetricValues) -> None:
        """Judges an update; one from a collapsed policy is always bad."""
        if self._verdict.ok:
            self._update = dict(metrics)
            self._verdict = self._guard.judge_update(metrics)

    def roll_back(self) -> Engine:
        """Restores the last good weights, optimizers and counters, and lowers learning rates.

        Returns:
            The engine with them.

        Raises:
            TrainingUnstable: There were too many rollbacks.
        """
        run, guard, iteration = self._run, self._guard, self._iteration
        self._record()
        target = guard.roll_back(self._verdict)
        if run.engine is not None:  # forces a reload from the disk
            run.engine.version = None
        engine = engine_at(run, target)
        engine.lr_scale = guard.state.lr_scale
        # They will be committed under this name as well.
        guard.state.good = version_after(iteration)
        dropped = self._update is None
        self._rollback = {"to": target, "reason": self._verdict.reason, "batch_dropped": dropped}
        progress.event(
            "rolled_back", iteration=iteration, lr_scale=engine.lr_scale, **self._rollback
        )
        progress.note(
            f"iteration {iteration + 1} rolled back to {target}"
            f"{', its batch dropped' if dropped else ''}: {self._verdict.reason}; "
            f"learning rates times {engine.lr_scale:g}"
        )
        return engine

    def metrics(self) -> dict[str, float]:
        """Metrics of the guard; ends the iteration."""
        if self._rollback is None:
            self._record()
        return {
            "guard/would_roll_back": float(not self._verdict.ok),
            "guard/rolled_back": float(self._rollback is not None),
            "guard/rollbacks": float(self._guard.state.rollbacks),
            "guard/lr_scale": self._guard.state.lr_scale,
        }

    def payload(self) -> dict[str, Any]:
        """The guard's part of the update's manifest."""
        content: dict[str, Any] = {"guard": self._guard.state.to_dict()}
        if not self._verdict.ok:
            content["condemned"] = self._verdict.reason
        if self._rollback is not None:
            content["rollback"] = self._rollback
        return content

    def _record(self) -> None:
        start = version_before(self._iteration)
        self._guard.record(start, self._rollout, self._update, self._verdict)


def _state_before(run: Run, iteration: int) -> GuardState:
    """The guard's state after the previous iteration."""
    if iteration == 0:
        return GuardState(good=steps.WARM_START)
    return GuardState(**read_manifest(run.step(iteration - 1, "update")).payload["guard"])
