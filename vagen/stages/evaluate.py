"""Evaluates a policy on every held-out level once, with a report of every episode."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any

from vagen import progress, steps
from vagen.config.base import ConfigError
from vagen.config.infra import InfraConfig
from vagen.config.schema import ExperimentConfig
from vagen.engines.base import Engine
from vagen.engines.columns import add_columns
from vagen.engines.make import make_engine
from vagen.judge.batch import score
from vagen.judge.scoring import cache_folder
from vagen.report.viewer import write_report
from vagen.rollout.batch import SCHEMA_VERSION, TrajectoryBatch
from vagen.rollout.episodes import evaluation_specs
from vagen.rollout.levels import LevelSet, draw_levels
from vagen.rollout.types import Status, Trajectory
from vagen.run import layout
from vagen.run.folder import read_results, result
from vagen.run.run import Run
from vagen.run.spent import spent
from vagen.stages.build import load_levels
from vagen.stages.format_probe import answers_probed, probe_format
from vagen.stages.rollout import check_images, episode_metrics
from vagen.stages.tracking import log_evaluation
from vagen.stages.weights import engine_at
from vagen.steps import version_after
from vagen.storage import commit_directory
from vagen.tracking import attempts_ci95, pass_at_k, success_ci95

_EXAMPLE_CHARACTERS = 400


def evaluate(run: Run, name: str, split: str) -> dict[str, Any]:
    """Plays a split's levels with the policy of `name` and commits the results.

    The first evaluation of a run starts with the format probe.

    Args:
        run: The run.
        name: `warm_start`, `final`, or `iteration-0010` (after ten iterations).
        split: `val` or `test`.

    Raises:
        FormatNotKept: The initial policy does not use the layout.
    """
    folder = run.evaluation(name)
    engine, levels = engine_at(run, _version(run, name)), load_levels(run)
    if name == steps.WARM_START and answers_probed(run.experiment):
        probe_format(run.experiment, engine, levels)
    play_levels(
        run.experiment,
        engine,
        levels,
        split=split,
        folder=folder,
        name=name,
        cache=cache_folder(run.infra),
        facts={name.removeprefix("run/"): f"{value:.4g}" for name, value in spent(run).items()}
        | _blind_facts(levels),
        replace=name == layout.FINAL,
        back=f"../../{layout.OVERVIEW}",
    )
    log_evaluation(run, name)
    return result(folder)


def play_levels(
    config: ExperimentConfig,
    engine: Engine,
    levels: list[LevelSet],
    *,
    split: str,
    folder: Path,
    name: str,
    count: int | None = None,
    cache: Path | None = None,
    facts: Mapping[str, str] | None = None,
    more: Mapping[str, Any] = MappingProxyType({}),
    replace: bool = False,
    back: str = "",
) -> dict[str, float]:
    """Plays and judges levels, estimates advantages, and commits batch, results and report.

    For `facts`, `more`, `replace` and `back` see `commit_episodes`.
    """
    assert engine.version is not None
    sampling = config.actor_rollout_ref.rollout.val_kwargs
    specs = evaluation_specs(config, levels, split, count, attempts=sampling.n)
    with progress.bar("episodes", len(specs)) as advance:
        trajectories, images = engine.play(
            specs, sampling=sampling, split=split, on_finish=lambda _: advance(1)
        )
    metrics = episode_metrics(trajectories, split) | score(config, trajectories, cache=cache)
    batch = TrajectoryBatch(
        trajectories=trajectories,
        images=images,
        policy_version=engine.version,
        config_digest=engine.config_digest,
        kind="evaluation",
        iteration=engine.updates,
        metrics=metrics,
    )
    _show_example(name, trajectories[0], images)
    check_images(batch, engine.processor, folder)
    add_columns(config, engine, trajectories, images, training=False)
    commit_episodes(
        config,
        batch,
        folder,
        name=name,
        split=split,
        levels=len(specs) // sampling.n,
        attempts=sampling.n,
        tokenizer=engine.processor.tokenizer,
        facts=facts,
        more=more,
        replace=replace,
        back=back,
    )
    return metrics


def _show_example(name: str, trajectory: Trajectory, images: Mapping[str, bytes]) -> None:
    """Shows the first frame of the first level, and the response to it."""
    outcome = "solved" if trajectory.success else "not solved"
    if not trajectory.turns:
        return
    turn = trajectory.turns[0]
    answer = textwrap.shorten(turn.response_text, _EXAMPLE_CHARACTERS, placeholder=" …")
    picture = images[turn.images[0]] if turn.images else None
    progress.note(
        f"{name}, first level: {outcome} in {len(trajectory.turns)} turns; first answer: {answer}",
        picture,
    )


def commit_episodes(
    config: ExperimentConfig,
    batch: TrajectoryBatch,
    folder: Path,
    *,
    name: str,
    split: str,
    levels: int,
    attempts: int,
    tokenizer: Any,
    facts: Mapping[str, str] | None = None,
    more: Mapping[str, Any] = MappingProxyType({}),
    replace: bool = False,
    back: str = "",
) -> None:
    """Commits a batch of judged episodes with their results and the report.

    Args:
        config: The experiment.
        batch: The episodes; those that failed in their environment do not count in rates.
        folder: Output folder.
        name: Name of the evaluation.
        split: Split of the levels.
        levels: Number of levels.
        attempts: Episodes per level.
        tokenizer: Converts token ids to text.
        facts: Additional facts for the report's header.
        more: Further results.
        replace: Whether to replace an existing folder.
        back: Link target of the report's header.
    """
    several = len(config.envs) > 1
    tried: dict[str, list[bool]] = {}
    for t in batch.trajectories:
        if t.status is not Status.ENV_ERROR:
            level = f"{t.config_id}/{t.level_hash}" if several else t.level_hash
            tried.setdefault(level, []).append(t.success)
    wins = {level: fmean(found) for level, found in tried.items()}
    results = {
        "name": name,
        "split": split,
        "policy_version": batch.policy_version,
        "levels": levels,
        "success": fmean(wins.values()) if wins else 0.0,
        "ci95": success_ci95([*wins.values()]) if wins else None,
        **pass_at_k([*tried.values()], attempts),
        **attempts_ci95([*tried.values()], attempts),
        "by_level": wins,
        **more,
    }
    payload = batch.manifest_payload()
    with commit_directory(
        folder, kind="evaluation", schema_version=SCHEMA_VERSION, payload=payload, replace=replace
    ) as partial:
        batch.write(partial)
        (partial / layout.RESULTS).write_text(json.dumps(results, indent=2) + "\n")
        write_report(
            batch,
            partial / layout.REPORT,
            title=f"{config.name}: {name} on {len(batch.trajectories)} {split} levels",
            tokenizer=tokenizer,
            facts=facts,
            back=back,
        )


def evaluate_model(
    model_path: str,
    experiment: ExperimentConfig,
    infra: InfraConfig,
    split: str,
    count: int | None,
    out_dir: Path,
    *,
    name: str | None = None,
    more: Mapping[str, Any] = MappingProxyType({}),
    replace: bool = False,
) -> dict[str, Any]:
    """Evaluates any model directory or hub id outside a run.

    Args:
        model_path: Local directory or hub id.
        experiment: Environments, budgets and sampling.
        infra: Device and threads.
        split: `val` or `test`.
        count: Levels per environment; None for all.
        out_dir: Folder of the evaluation.
        name: Name in the report; None for the split.
        more: Further results.
        replace: Whether to replace an existing folder.

    Returns:
        `uri`, `sha256`, `metrics`, `results`.

    Raises:
        ModelError: The model cannot be loaded.
    """
    levels = draw_levels(experiment, {split: count})
    engine = make_engine(experiment, infra, str(model_path), version=str(model_path))
    with closing(engine):
        play_levels(
            experiment,
            engine,
            levels,
            split=split,
            folder=Path(out_dir),
            name=name or split,
            cache=cache_folder(infra),
            more=more,
            replace=replace,
        )
    return {**result(Path(out_dir)), "results": read_results(Path(out_dir))}


def _blind_facts(levels: Sequence[LevelSet]) -> dict[str, str]:
    """Scores of the best constant text, if `build` measured them."""
    return {
        f"{each.config_id}: a constant {section} scores": f"{chance:.2f}"
        for each in levels
        for section, chance in asdict(each.blind).items()
        if chance is not None
    }


def _version(run: Run, name: str) -> str:
    """The policy of an evaluation's name."""
    if name == steps.WARM_START:
        return steps.WARM_START
    if name == layout.FINAL:
        return version_after(run.final_iteration)
    if (iteration := layout.validated_iteration(name)) is not None:
        return version_after(iteration)
    raise ConfigError(
        f"no policy is meant by evaluation {name!r}: use warm_start, final or iteration-0010"
    )
