"""Updates the weights from a batch with advantages."""

from collections.abc import Sequence

import numpy as np

from vagen import progress
from vagen.config.schema import ExperimentConfig
from vagen.engines.base import Engine, Images
from vagen.learning.turn_credit import update_credit
from vagen.metrics import UPDATE_KL
from vagen.rollout.runner import derive_seed
from vagen.rollout.types import TokenRow, Trajectory

KL_ROWS = 32
"""Number of rows on which to measure the change of log-probabilities by an update."""


def learn(
    config: ExperimentConfig,
    engine: Engine,
    trajectories: Sequence[Trajectory],
    images: Images,
    iteration: int,
) -> dict[str, float]:
    """Updates the engine's weights from trajectories with all columns; returns metrics."""
    kept = [trajectory for trajectory in trajectories if trajectory.kept is not False]
    rows = [row for trajectory in kept for row in trajectory.rows if row.loss_mask.any()]
    learns = iteration >= config.trainer.critic_warmup
    engine.version = None
    passes = config.actor_rollout_ref.actor.ppo_epochs * learns
    if engine.learns_values:
        passes += config.critic.epochs(warmup=not learns)
    with progress.bar("rows", len(rows) * passes) as advance:
        metrics = engine.update(
            rows,
            images,
            seed=derive_seed(config.seed, "update", iteration),
            actor=learns,
            on_progress=advance,
        )
    update_credit(config, engine.credit, trajectories)
    metrics["update/skipped"] = float(not rows)
    if learns and rows:
        metrics[UPDATE_KL] = _update_kl(engine, rows[:KL_ROWS], images)
    return metrics


def _update_kl(engine: Engine, rows: Sequence[TokenRow], images: Images) -> float:
    """Mean of old minus new log-probabilities of the sampled tokens, nats per token.

    `actor/ppo_kl` is measured during the update and is 0 for a single optimizer step.
    """
    new = engine.logprobs(rows, images)
    changes = [
        (row.columns["old_logprobs"] - logprobs)[row.loss_mask]
        for row, logprobs in zip(rows, new, strict=True)
    ]
    return float(np.concatenate(changes).mean())
