"""PPO update: trains actor and critic on a batch with advantages; undoes what the guard rejects.

The guard's state is in the manifest of each update, so that a resumed run continues with the same
numbers. The weights for a rollback are in a checkpoint that is kept.
"""

from pathlib import Path
from typing import Any

from vagen import progress, steps
from vagen.engines.base import Engine
from vagen.engines.learn import learn
from vagen.learning.early_stop import PATIENCE, no_learning_warnings, stop_reason
from vagen.learning.guard import Guard, GuardState, MetricValues
from vagen.metrics import REWARD_VARIANCE
from vagen.run.folder import result
from vagen.run.run import Run
from vagen.stages.batches import read_batch
from vagen.stages.tracking import log_iteration
from vagen.stages.weights import (
    begin_checkpoint,
    engine_at,
    prune_checkpoints,
    prune_iterations,
    version_learning,
)
from vagen.steps import ITERATION, version_after, version_before
from vagen.storage import commit_directory, read_manifest


def update(
    run: Run, iteration: int, source: Path | None = None, out: Path | None = None
) -> dict[str, Any]:
    """Updates the policy, starts a checkpoint if due, and commits the step with metrics.

    The checkpoint is written in the background (`vagen.stages.weights`), except if the update
    depends on it: the last one, and one after a rollback, are written first. Rejected updates are
    undone before the commit: the checkpoint then has the last good weights. With `out` (repeating a
    single step) the checkpoint goes there, the run does not change and nothing is undone.

    Raises:
        TrainingUnstable: The guard undid more updates than `trainer.guard.max_rollbacks`.
    """
    folder = out or run.step(iteration, "update")
    batch, _ = read_batch(run, "update", iteration, source)
    engine = engine_at(run, version_learning(run, batch))
    if out is not None:
        metrics = learn(run.experiment, engine, batch.trajectories, batch.images, iteration) | {
            "algorithm/kl_coef": engine.kl_coef
        }
        with commit_directory(folder, kind="update", payload={"metrics": metrics}) as partial:
            engine.save(partial / "checkpoint")
        run.engine = None
        return result(folder)
    history: dict[str, float] = {}
    for name in ITERATION[:-1]:
        history |= read_manifest(run.step(iteration, name)).payload["metrics"]
    watch = Watch(run, iteration, history)
    good = watch.good  # needed to repeat this update after a kill
    metrics = {}
    if watch.may_learn:
        metrics = learn(run.experiment, engine, batch.trajectories, batch.images, iteration)
        watch.judge_update(metrics)
    if watch.must_roll_back:
        engine = watch.roll_back()
    metrics |= watch.metrics() | {"algorithm/kl_coef": engine.kl_coef}
    history |= metrics
    payload = {
        "metrics": metrics,
        "history": history,
        "policy_version": version_after(iteration),
        **watch.payload(),
    }
    for sign in no_learning_warnings([*_before(run, iteration), history]):
        progress.note(sign)
    reason = _stop_reason(run, iteration, history)
    if reason is not None:
        payload["stopped"] = reason
        progress.note(f"the training ends after iteration {iteration + 1}: {reason}")
    last = reason is not None or iteration + 1 == run.experiment.trainer.total_training_steps
    cannot_be_repeated = last or watch.must_roll_back
    trainer = run.experiment.trainer
    may_be_best = trainer.select == "best_validation" and trainer.validates_after(iteration)
    if cannot_be_repeated or may_be_best or (iteration + 1) % run.infra.save_freq == 0:
        run.await_checkpoint()
        prune_checkpoints(run, iteration, base=good)
        begin_checkpoint(run, engine, iteration)
        if cannot_be_repeated:
            run.await_checkpoint()
    with commit_directory(folder, kind="update", payload=payload):
        pass
    engine.version = version_after(iteration)
    log_iteration(run, iteration, history)
    prune_iterations(run)
    return result(folder)


def _before(run: Run, iteration: int) -> list[dict[str, float]]:
    """Metrics of earlier iterations, as many as warnings need."""
    numbers = range(max(iteration - PATIENCE, 0), iteration)
    return [read_manifest(run.step(n, "update")).payload["history"] for n in numbers]


def _stop_reason(run: Run, iteration: int, history: dict[str, float]) -> str | None:
    """The reason to stop training after this iteration; None if there is none or it is the last."""
    rules = run.experiment.trainer.early_stop
    if iteration + 1 == run.experiment.trainer.total_training_steps:
        return None
    rows: list[dict[str, float]] = []
    if rules.min_reward_variance is not None or rules.empty_batches is not None:
        rows = [*run.iteration_metrics(), history]
    variances = [row[REWARD_VARIANCE] for row in rows if REWARD_VARIANCE in row]
    skipped = [row.get("update/skipped") == 1.0 for row in rows]
    successes = [*run.validations().values()] if rules.min_val_success is not None else []
    return stop_reason(rules, variances, successes, skipped)


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
