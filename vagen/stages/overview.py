"""HTML pages of a run: the overview, any batch of episodes, one level over the training."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from vagen import steps
from vagen.config.schema import trajectories_per_iteration
from vagen.envs import distinct_levels, get_environment
from vagen.report.frames import fit_frames
from vagen.report.overview import (
    ByDifficulty,
    Course,
    Difficulty,
    EvaluationLink,
    Flips,
    Headline,
    LevelPicture,
    write_overview,
)
from vagen.report.viewer import write_report
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.types import Trajectory
from vagen.run import layout
from vagen.run.folder import committed, read_results
from vagen.run.run import Run
from vagen.stages.finalize import write_run_curves
from vagen.storage import MANIFEST
from vagen.tracking import paired_bootstrap

_EXAMPLE_BYTES, _THUMBNAIL_BYTES = 400_000, 8_000
"""Maximum size of an episode's frames, and of a level's frame."""
LEVELS_SHOWN = 48
"""Maximum number of levels on a page with a slider; changed ones come first."""


def write_pages(run: Run, *, refresh: int | None = None) -> Path:
    """Writes the learning curves and the run's page; returns the page's path.

    Can run at any time, even during a training.

    Args:
        run: The run.
        refresh: Seconds between reloads in a browser; None for never.

    Raises:
        CorruptArtifact: Results of an evaluation were changed.
    """
    results = _results(run)
    (run.path / layout.OVERVIEW).parent.mkdir(exist_ok=True)
    experiment, done = run.experiment, run.finished_iterations
    total = experiment.trainer.total_training_steps
    history = run.iteration_metrics()
    return write_overview(
        run.path / layout.OVERVIEW,
        title=run.name,
        facts={
            "experiment": experiment.name,
            "preset": experiment.preset or "none",
            "seed": str(experiment.seed),
            "iterations": f"{done} of {total}",
            "episodes in each": f"{trajectories_per_iteration(experiment)}",
        },
        curves=write_run_curves(run),
        headline=_headline(run, results),
        evaluations=[
            EvaluationLink(
                name,
                found["split"],
                found["levels"],
                found["success"],
                tuple(found["ci95"]) if found["ci95"] else None,
                f"../{layout.EVALUATIONS}/{name}/{layout.REPORT}",
            )
            for name, found in results.items()
        ],
        flips=[
            flips for split in ("val", "test") if (flips := _flips(run, split, _of(split, results)))
        ],
        difficulties=[*_difficulties(run, results)],
        metrics=history[-1] if history else {},
        refresh=refresh,
    )


def write_batch_page(folder: Path, path: Path, *, run: Run | None = None) -> Path:
    """Writes the page of a committed batch of episodes from any stage.

    Args:
        folder: The batch.
        path: The file to write.
        run: The batch's run; without it tokens are shown as numbers.

    Raises:
        StorageError: The batch does not exist, or was changed.
    """
    if run is not None:
        run.fetch(folder)
    batch = TrajectoryBatch.load(folder)
    name = folder.relative_to(run.path).as_posix() if run is not None else folder.name
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_report(
        batch,
        path,
        title=f"{batch.kind}, {name}" + (f" of {run.name}" if run else ""),
        tokenizer=_tokenizer(run),
        back=layout.OVERVIEW.name if run else "",
    )


def _results(run: Run) -> dict[str, dict[str, Any]]:
    """Results of the run's evaluations, in order of the training."""
    names = sorted(path.name for path in (run.path / layout.EVALUATIONS).glob("[!.]*"))
    validated = [name for name in names if layout.validated_iteration(name) is not None]
    return {
        name: read_results(run.fetch(run.evaluation(name), layout.RESULTS))
        for name in (steps.WARM_START, *validated, layout.FINAL)
        if committed(run.evaluation(name)) is not None
    }


def _of(split: str, results: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: found for name, found in results.items() if found["split"] == split}


def _flips(run: Run, split: str, results: dict[str, dict[str, Any]]) -> Flips | None:
    """Levels gained and lost between the first and last evaluation of a split; None if only
    one exists.
    """
    if len(results) < 2:
        return None
    (first, before), *_, (last, after) = results.items()
    wins = [{level for level, rate in r["by_level"].items() if rate > 0} for r in (before, after)]
    hashes = [level.rpartition("/")[2] for level in before["by_level"]]
    gained, lost = (
        sorted(level.rpartition("/")[2] for level in levels)
        for levels in (wins[1] - wins[0], wins[0] - wins[1])
    )
    page = layout.OVERVIEW.with_name(f"levels-{split}.html")
    _write_levels(run, split, [*results], [*dict.fromkeys(lost + gained + hashes)], run.path / page)
    batches = [TrajectoryBatch.load(run.fetch(run.evaluation(name))) for name in (first, last)]
    played = [{t.level_hash: t for t in reversed(batch.trajectories)} for batch in batches]
    example = next((h for h in gained + hashes if all(h in each for each in played)), None)
    courses = [
        _course(name, each[example], batch.images)
        for name, each, batch in zip((first, last), played, batches, strict=True)
        if example is not None
    ]
    return Flips(
        split,
        first,
        last,
        *(
            [LevelPicture(h, _first_frame(played[1].get(h), batches[1].images)) for h in levels]
            for levels in (gained, lost)
        ),
        example=courses,
        address=f"../{layout.EVALUATIONS}/{last}/{layout.REPORT}",
        page=page.name,
    )


def _course(policy: str, trajectory: Trajectory, images: Mapping[str, bytes]) -> Course:
    """Record of how a level was played."""
    shown = [*(image for turn in trajectory.turns for image in turn.images)]
    frames = fit_frames({digest: images[digest] for digest in shown}, _EXAMPLE_BYTES)
    answer = trajectory.turns[0].response_text if trajectory.turns else ""
    return Course(
        policy, trajectory.success, [frames[digest] for digest in shown if digest in frames], answer
    )


def _first_frame(trajectory: Trajectory | None, images: Mapping[str, bytes]) -> bytes:
    """A thumbnail of the first frame of an episode; empty if there is none."""
    turns = trajectory.turns if trajectory is not None else []
    if not turns or not turns[0].images:
        return b""
    digest = turns[0].images[0]
    return fit_frames({digest: images[digest]}, _THUMBNAIL_BYTES).get(digest, b"")


def _headline(run: Run, results: dict[str, dict[str, Any]]) -> Headline | None:
    """The gain on the split of the newest evaluation that has an earlier one."""
    for split in ("test", "val"):
        found = [*_of(split, results).values()]
        if len(found) < 2:
            continue
        before, after = found[0], found[-1]
        shared = sorted(before["by_level"].keys() & after["by_level"].keys())
        rates = [[each["by_level"][level] for level in shared] for each in (before, after)]
        gain, interval = paired_bootstrap(*rates, seed=run.experiment.seed)
        return Headline(split, len(shared), before["success"], after["success"], gain, interval)
    return None


def _write_levels(
    run: Run, split: str, names: Sequence[str], hashes: Sequence[str], path: Path
) -> None:
    """Writes the page of levels played by each policy, if missing."""
    folders = [run.evaluation(name) for name in names]
    newest = max((folder / MANIFEST).stat().st_mtime for folder in folders)
    if path.exists() and path.stat().st_mtime > newest:
        return
    batches = [TrajectoryBatch.load(run.fetch(folder)) for folder in folders]
    played = [{t.level_hash: t for t in reversed(batch.trajectories)} for batch in batches]
    shown = [level for level in hashes if all(level in found for found in played)][:LEVELS_SHOWN]
    images: dict[str, bytes] = {}
    for batch in batches:
        images |= batch.images
    trajectories = [
        replace(found[level], trajectory_id=f"{found[level].trajectory_id}@{name}")
        for name, found in zip(names, played, strict=True)
        for level in shown
    ]
    used = {digest for t in trajectories for turn in t.turns for digest in turn.images}
    used |= {digest for t in trajectories for row in t.rows for digest in row.images}
    write_report(
        replace(
            batches[-1],
            trajectories=trajectories,
            images={digest: png for digest, png in images.items() if digest in used},
        ),
        path,
        title=f"{run.name}: {len(shown)} of {len(hashes)} {split} levels over the training, "
        "lost ones first",
        tokenizer=_tokenizer(run),
        moments=names,
        back=layout.OVERVIEW.name,
    )


def _difficulties(run: Run, results: dict[str, dict[str, Any]]) -> Sequence[ByDifficulty]:
    """Success on the test levels by the first component of their difficulty."""
    tested = {name: found["by_level"] for name, found in _of("test", results).items()}
    tables = []
    for env_id, spec in run.experiment.envs.items() if tested else ():
        refs = distinct_levels(
            spec.env_name, spec.env_config, "test", spec.test_size, with_difficulty=True
        )
        groups: dict[float, list[str]] = {}
        for ref in refs:
            level = f"{env_id}/{ref.level_hash}" if len(run.experiment.envs) > 1 else ref.level_hash
            if ref.difficulty and all(level in found for found in tested.values()):
                groups.setdefault(ref.difficulty[0], []).append(level)
        if len(groups) > 1:
            rows = [
                Difficulty(
                    difficulty,
                    len(levels),
                    [fmean(found[level] for level in levels) for found in tested.values()],
                )
                for difficulty, levels in sorted(groups.items())
            ]
            meaning = get_environment(spec.env_name).load().difficulty_name
            tables.append(ByDifficulty(env_id, meaning, [*tested], rows))
    return tables


def _tokenizer(run: Run | None) -> Any | None:
    """The tokenizer of the run's initial policy, if available locally."""
    if run is None or committed(run.warm_start) is None:
        return None
    from vagen.models.processor import load_processor

    return load_processor(run.initial_model()).tokenizer
