"""PPO update: actor and critic learn from a batch with advantages."""

from pathlib import Path
from typing import Any

from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.runner import derive_seed
from vagen.stages import progress
from vagen.stages.resident import engine_at, prune_checkpoints, version_after
from vagen.stages.run import Run, committed, result
from vagen.stages.tracking import log_iteration
from vagen.storage import commit_directory, read_manifest


def update(
    run: Run, iteration: int, source: Path | None = None, out: Path | None = None
) -> dict[str, Any]:
    """Updates the policy, commits a checkpoint, then the step with the iteration's metrics.

    With `out` (a single step run again) the checkpoint goes there and the run is left as it is.
    """
    source = source or run.step(iteration, "advantage")
    folder = out or run.step(iteration, "update")
    done = committed(folder)
    if done is not None:
        if out is None:
            log_iteration(run, iteration, done.payload["history"])
        return result(folder)
    batch = TrajectoryBatch.load(source, kind="advantage", config_digest=run.config_digest)
    engine = engine_at(run, batch.policy_version)
    rows = [row for trajectory in batch.trajectories for row in trajectory.rows]
    rows = [row for row in rows if row.loss_mask.any()]
    config = run.experiment
    passes = config.actor_rollout_ref.actor.ppo_epochs
    learns = iteration >= config.trainer.critic_warmup
    checkpoint = folder / "checkpoint" if out else run.checkpoint(iteration)
    engine.version = f"{engine.version}, being updated"
    total = len(rows) * (passes * learns + config.critic.ppo_epochs * (engine.critic is not None))
    with progress.bar("rows", total) as advance:
        metrics = engine.update(
            rows,
            batch.images,
            seed=derive_seed(config.seed, "update", iteration),
            actor=learns,
            on_progress=advance,
        )
    metrics["algorithm/kl_coef"] = engine.kl_coef
    if out is not None:
        with commit_directory(folder, kind="update", payload={"metrics": metrics}) as partial:
            engine.save(partial / "checkpoint")
        run.engine = None
        return result(folder)
    with commit_directory(checkpoint, kind="checkpoint", replace=True) as partial:
        engine.save(partial)
    history: dict[str, float] = {}
    for name in ("rollout", "judge", "advantage"):
        history |= read_manifest(run.step(iteration, name)).payload["metrics"]
    history |= metrics
    payload = {
        "metrics": metrics,
        "history": history,
        "policy_version": version_after(iteration),
        "checkpoint": read_manifest(checkpoint).digest,
    }
    with commit_directory(folder, kind="update", payload=payload):
        pass
    engine.version = version_after(iteration)
    prune_checkpoints(run, iteration)
    log_iteration(run, iteration, history)
    return result(folder)
