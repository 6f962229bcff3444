"""PPO update: actor and critic learn from a batch with advantages."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vagen import progress
from vagen.engines.base import Engine, Images
from vagen.learning.early_stop import stop_reason
from vagen.metrics import REWARD_VARIANCE, UPDATE_KL
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.runner import derive_seed
from vagen.rollout.types import TokenRow
from vagen.run.run import Run, result
from vagen.stages.credit import update_credit
from vagen.stages.evaluate import validations
from vagen.stages.stability import Watch
from vagen.stages.tracking import log_iteration
from vagen.stages.weights import engine_at, prune_checkpoints, version_after, version_learning
from vagen.storage import commit_directory, read_manifest

KL_ROWS = 32
"""Rows of the batch on which the change of log-probabilities is measured after an update."""


def update(
    run: Run, iteration: int, source: Path | None = None, out: Path | None = None
) -> dict[str, Any]:
    """Updates the policy, commits a checkpoint, then the step with the iteration's metrics.

    What the guard condemns is undone before anything is committed: the checkpoint then holds the
    last good weights. With `out` (a single step run again) the checkpoint goes there, the run is
    left as it is and nothing is undone.

    Raises:
        TrainingUnstable: The guard undid more updates than `trainer.guard.max_rollbacks`.
    """
    source = source or run.step(iteration, "advantage")
    folder = out or run.step(iteration, "update")
    batch = TrajectoryBatch.load(
        run.fetch(source), kind="advantage", config_digest=run.config_digest
    )
    engine = engine_at(run, version_learning(run, batch))
    if out is not None:
        metrics = _learn(run, engine, batch, iteration) | {"algorithm/kl_coef": engine.kl_coef}
        with commit_directory(folder, kind="update", payload={"metrics": metrics}) as partial:
            engine.save(partial / "checkpoint")
        run.engine = None
        return result(folder)
    history: dict[str, float] = {}
    for name in ("rollout", "judge", "advantage"):
        history |= read_manifest(run.step(iteration, name)).payload["metrics"]
    watch = Watch(run, iteration, history)
    metrics = {}
    if watch.may_learn:
        metrics = _learn(run, engine, batch, iteration)
        watch.see_update(metrics)
    if watch.must_roll_back:
        engine = watch.roll_back()
    metrics |= watch.metrics() | {"algorithm/kl_coef": engine.kl_coef}
    history |= metrics
    checkpoint = run.checkpoint(iteration)
    with commit_directory(checkpoint, kind="checkpoint", replace=True) as partial:
        engine.save(partial)
    payload = {
        "metrics": metrics,
        "history": history,
        "policy_version": version_after(iteration),
        "checkpoint": read_manifest(checkpoint).digest,
        **watch.payload(),
    }
    if (reason := _stop_reason(run, iteration, history)) is not None:
        payload["stopped"] = reason
        progress.note(f"the training ends after iteration {iteration + 1}: {reason}")
    with commit_directory(folder, kind="update", payload=payload):
        pass
    engine.version = version_after(iteration)
    prune_checkpoints(run, iteration, keep=watch.good)
    log_iteration(run, iteration, history)
    return result(folder)


def _learn(run: Run, engine: Engine, batch: TrajectoryBatch, iteration: int) -> dict[str, float]:
    """Changes the engine's weights; returns the update's metrics."""
    kept = [trajectory for trajectory in batch.trajectories if trajectory.kept is not False]
    rows = [row for trajectory in kept for row in trajectory.rows if row.loss_mask.any()]
    config = run.experiment
    passes = config.actor_rollout_ref.actor.ppo_epochs
    learns = iteration >= config.trainer.critic_warmup
    engine.version = None
    total = len(rows) * (passes * learns + config.critic.ppo_epochs * (engine.learns_values))
    with progress.bar("rows", total) as advance:
        metrics = engine.update(
            rows,
            batch.images,
            seed=derive_seed(config.seed, "update", iteration),
            actor=learns,
            on_progress=advance,
        )
    update_credit(config, engine.credit, batch.trajectories)
    metrics["update/skipped"] = float(not rows)
    if learns and rows:
        metrics[UPDATE_KL] = _update_kl(engine, rows[:KL_ROWS], batch.images)
    return metrics


def _update_kl(engine: Engine, rows: Sequence[TokenRow], images: Images) -> float:
    """Mean of old minus new log-probabilities of the sampled tokens, nats per token.

    `actor/ppo_kl` is taken while the update goes on: of a single optimizer step it is 0.
    """
    new = engine.logprobs(rows, images)
    changes = [
        (row.columns["old_logprobs"] - logprobs)[row.loss_mask]
        for row, logprobs in zip(rows, new, strict=True)
    ]
    return float(np.concatenate(changes).mean())


def _stop_reason(run: Run, iteration: int, history: dict[str, float]) -> str | None:
    """Why the training should end with this iteration; None if it should not, or ends anyway."""
    rules = run.experiment.trainer.early_stop
    if iteration + 1 == run.experiment.trainer.total_training_steps:
        return None
    variances: list[float] = []
    if rules.min_reward_variance is not None:
        rows = [*run.iteration_metrics(), history]
        variances = [row[REWARD_VARIANCE] for row in rows if REWARD_VARIANCE in row]
    successes = validations(run, iteration) if rules.min_val_success is not None else []
    return stop_reason(rules, variances, successes)
