"""The advantage step: adds the columns that the update needs."""

from functools import partial
from pathlib import Path
from typing import Any

from vagen.engines.collapse import is_due, measure
from vagen.engines.columns import add_columns, watch_agreement
from vagen.run.folder import committed
from vagen.run.run import Run
from vagen.stages.batches import commit_batch, read_batch
from vagen.stages.weights import engine_at, version_learning
from vagen.storage import CorruptArtifact, read_manifest


def advantage(
    run: Run, iteration: int, source: Path | None = None, out: Path | None = None
) -> dict[str, Any]:
    """Adds all columns for the update to a judged batch and commits it.

    Raises:
        EnginesDisagree: Rollout and trainer disagree in the first iteration.
    """
    batch, source = read_batch(run, "advantage", iteration, source)
    _check_tokens(run.step(iteration, "rollout"), source)
    engine = engine_at(run, version_learning(run, batch))
    metrics = add_columns(
        run.experiment,
        engine,
        batch.trajectories,
        batch.images,
        watch=partial(watch_agreement, run.experiment.trainer.agreement, iteration),
    )
    if is_due(run.experiment, iteration):
        metrics |= measure(run.experiment, engine, batch.trajectories, batch.images)
    return commit_batch(run, "advantage", batch, metrics, source, out)


def _check_tokens(played: Path, judged: Path) -> None:
    """Checks that the judged batch has the tokens of the rollout.

    Raises:
        CorruptArtifact: Tokens or frames differ.
    """
    if committed(played) is None:
        return
    for name in ("tokens.parquet", "images.parquet"):
        before, after = (read_manifest(folder).files.get(name) for folder in (played, judged))
        if before != after:
            raise CorruptArtifact(
                f"{judged / name} is not what was played: {played / name} is another; delete "
                f"{judged} and resume the run: it is judged again"
            )
