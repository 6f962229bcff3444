"""Plays one batch of episodes with the policy."""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np

from vagen import progress
from vagen.config.schema import ExperimentConfig, trajectories_per_iteration
from vagen.engines.base import Engine, Images, Play
from vagen.envs.images import decode_png
from vagen.experiment.checks import needs_greedy_baseline
from vagen.learning.early_stop import group_variance
from vagen.learning.filters import ZERO
from vagen.learning.selection import turn_rewards
from vagen.metrics import REWARD_VARIANCE, TOKENS
from vagen.models.processor import Processor
from vagen.rollout.batch import SCHEMA_VERSION, BatchError, TrajectoryBatch
from vagen.rollout.carried import carry_on, read_carried, write_carried
from vagen.rollout.contexts import context_tokens
from vagen.rollout.curriculum import BucketCounts, Curriculum
from vagen.rollout.episodes import greedy_specs, refill_specs, training_specs
from vagen.rollout.runner import EpisodeSpec, derive_seed
from vagen.rollout.types import Status, Trajectory
from vagen.run import layout
from vagen.run.folder import result
from vagen.run.run import NextRollout, Run
from vagen.stages.build import load_levels
from vagen.stages.weights import engine_at, version_played
from vagen.steps import updates_before
from vagen.storage import commit_directory

OnFinish = Callable[[Trajectory], None]


@dataclass(frozen=True, slots=True)
class PlayedEpisodes:
    """The episodes of an iteration."""

    trajectories: list[Trajectory]
    images: Images
    metrics: dict[str, float]
    carried: Sequence[EpisodeSpec] = ()
    """Episodes to continue in the next iteration (`rollout_manager.over_sampling_batch_size`)."""
    seen: BucketCounts | None = None
    """Level statistics for the next iteration (`data.curriculum`)."""


def rollout(run: Run, iteration: int) -> dict[str, Any]:
    """Plays the iteration's episodes and commits the batch.

    The policy is the one that the update starts from, or, with `rollout_manager.one_step_off`, the
    previous one: then `start_rollout` may already be running.
    """
    folder = run.step(iteration, "rollout")
    version = version_played(run, iteration)
    if run.next_rollout is not None and run.next_rollout.iteration == iteration:
        played, run.next_rollout = run.next_rollout.episodes.result(), None
        engine = run.engine
    else:
        engine = engine_at(run, version)
        played = _play_watched(run, engine, iteration)
    assert engine is not None
    batch = TrajectoryBatch(
        trajectories=played.trajectories,
        images=played.images,
        policy_version=version,
        config_digest=run.config_digest,
        kind="rollout",
        iteration=iteration,
        metrics=played.metrics | _spread(played.trajectories) | {TOKENS: _tokens(played)},
    )
    check_images(batch, engine.processor, folder)
    payload = batch.manifest_payload()
    with commit_directory(
        folder, kind=batch.kind, schema_version=SCHEMA_VERSION, payload=payload
    ) as partial:
        batch.write(partial)
        if run.experiment.rollout_manager.over_sampling_batch_size is not None:
            write_carried(partial / layout.CARRIED, played.carried)
        if played.seen is not None:
            (partial / layout.CURRICULUM).write_text(json.dumps(played.seen))
    return result(folder)


def start_rollout(run: Run, iteration: int) -> None:
    """Starts to play an iteration's episodes during the previous iteration's update.

    Does nothing if there is no such iteration, or the update is already done.
    """
    total = run.experiment.trainer.total_training_steps
    if iteration < total and iteration - 1 == run.finished_iterations:
        engine = engine_at(run, version_played(run, iteration))
        episodes = engine.play_in_background(lambda play: play_iteration(run, play, iteration))
        run.next_rollout = NextRollout(iteration, episodes)


def play_iteration(
    run: Run, play: Play, iteration: int, on_finish: OnFinish | None = None
) -> PlayedEpisodes:
    """Plays an iteration's episodes.

    Groups without variation are replaced by others (`algorithm.filter_groups`); metrics include
    them. For `remax` each level is also played greedily, only for its score.

    Args:
        run: The run.
        play: `play` of the engine.
        iteration: Index of the iteration.
        on_finish: Called with each finished trajectory, except for greedy ones.
    """
    config = run.experiment
    curriculum = curriculum_of(run, iteration)
    if config.rollout_manager.over_sampling_batch_size is not None:
        return _play_partly(run, play, iteration, curriculum, on_finish)
    options, sampling = config.algorithm.filter_groups, config.actor_rollout_ref.rollout
    specs, groups, images = _play_groups(run, play, iteration, curriculum, on_finish)
    every = [*chain(*groups.values())]
    seen, counts = curriculum.count(every)
    metrics = episode_metrics(every, "train") | counts
    if options.max_num_gen_batches > 1:
        metrics["rollout/groups_played"] = float(len(groups))
        varied_first = sorted(groups, key=lambda name: not _varies(groups[name], options.metric))
        kept = sorted(varied_first[: config.data.train_batch_size])
        groups = {name: groups[name] for name in kept}
    trajectories = [*chain(*groups.values())]
    if needs_greedy_baseline(config):
        greedy = sampling.model_copy(update={"temperature": 0.0})
        levels = greedy_specs([spec for spec in specs if spec.group_id in groups])
        baselines, _ = play(levels, sampling=greedy, split="train")
        metrics |= set_baselines(config, trajectories, baselines)
    return PlayedEpisodes(trajectories, images, metrics, seen=seen)


def _play_groups(
    run: Run, play: Play, iteration: int, curriculum: Curriculum, on_finish: OnFinish | None
) -> tuple[list[EpisodeSpec], dict[str, list[Trajectory]], Images]:
    """Plays until enough groups vary, within the limit of `algorithm.filter_groups`."""
    config = run.experiment
    options, size = config.algorithm.filter_groups, config.data.train_batch_size
    order, missing = curriculum.order(), size
    specs: list[EpisodeSpec] = []
    groups: dict[str, list[Trajectory]] = defaultdict(list)
    images: Images = {}
    for _ in range(options.max_num_gen_batches):
        if groups:
            new_specs = refill_specs(
                config, curriculum.levels, iteration, len(groups), missing, order
            )
        else:
            new_specs = training_specs(config, curriculum.levels, iteration, order)
        specs += new_specs
        sampling = config.actor_rollout_ref.rollout
        found, shown = play(new_specs, sampling=sampling, split="train", on_finish=on_finish)
        images |= shown
        for trajectory in found:
            groups[trajectory.group_id].append(trajectory)
        missing = size - sum(_varies(group, options.metric) for group in groups.values())
        if missing <= 0:
            break
    return specs, groups, images


def _play_partly(
    run: Run, play: Play, iteration: int, curriculum: Curriculum, on_finish: OnFinish | None
) -> PlayedEpisodes:
    """Plays until a batch of whole groups is finished; the other episodes are carried over.

    If more groups are finished, the oldest form the batch.
    """
    config, version = run.experiment, version_played(run, iteration)
    size = config.data.train_batch_size
    begun = training_specs(config, curriculum.levels, iteration, curriculum.order())
    specs = _carried(run, iteration) + begun
    sampling = config.actor_rollout_ref.rollout
    found, images = play(specs, sampling=sampling, split="train", groups=size, on_finish=on_finish)
    unfinished = {t.group_id for t in found if t.status is Status.UNFINISHED}
    groups = dict.fromkeys(t.group_id for t in found if t.group_id not in unfinished)
    batch = set([*groups][:size])
    pairs = [*zip(specs, found, strict=True)]
    trajectories = [t for t in found if t.group_id in batch]
    for turn in chain.from_iterable(t.turns for t in trajectories):
        turn.policy_version = turn.policy_version or version
    carried = [bool(spec.answers) for spec in specs if spec.group_id in batch]
    seen, counts = curriculum.count(trajectories)
    return PlayedEpisodes(
        trajectories,
        {digest: images[digest] for t in trajectories for digest in t.frames},
        episode_metrics(trajectories, "train")
        | _staleness(trajectories, iteration)
        | {"rollout/carried": float(np.mean(carried))}
        | counts,
        [carry_on(spec, t, version) for spec, t in pairs if t.group_id not in batch],
        seen,
    )


def curriculum_of(run: Run, iteration: int) -> Curriculum:
    """The curriculum after the previous rollout."""
    config = run.experiment.data.curriculum
    seen = {}
    if config.enable and iteration:
        folder = run.fetch(run.step(iteration - 1, "rollout"))
        seen = json.loads((folder / layout.CURRICULUM).read_text())
    seed = derive_seed(run.experiment.seed, "curriculum", iteration)
    return Curriculum(config, load_levels(run), seen, seed)


def _carried(run: Run, iteration: int) -> list[EpisodeSpec]:
    """Episodes to continue from the previous iteration."""
    if iteration == 0:
        return []
    folder = run.fetch(run.step(iteration - 1, "rollout"))
    return read_carried(folder / layout.CARRIED)


def _staleness(trajectories: Sequence[Trajectory], iteration: int) -> dict[str, float]:
    """Number of updates between the weights that sampled a token and those that learn from it."""
    lags = [
        iteration - updates_before(t.turns[k].policy_version)
        for t in trajectories
        for row in t.rows
        for k in row.turn_index[row.loss_mask]
    ]
    if not lags:
        return {}
    return {"rollout/staleness": float(np.mean(lags)), "rollout/staleness_max": float(max(lags))}


def _varies(group: Sequence[Trajectory], metric: str) -> bool:
    """Whether trajectories of a level differ, without failed ones."""
    values = [float(getattr(t, metric)) for t in group if t.status is not Status.ENV_ERROR]
    return bool(values) and max(values) - min(values) > ZERO


def _play_watched(run: Run, engine: Engine, iteration: int) -> PlayedEpisodes:
    wins, wanted = _Wins(), trajectories_per_iteration(run.experiment)
    with progress.bar("episodes", wanted) as advance:
        return play_iteration(
            run,
            engine.play,
            iteration,
            # More may finish: groups that are dropped or carried over.
            on_finish=lambda t: advance(int(wins.count < wanted), success=wins.add(t)),
        )


def set_baselines(
    config: ExperimentConfig, trajectories: Sequence[Trajectory], greedy: Sequence[Trajectory]
) -> dict[str, float]:
    """Sets each trajectory's baseline to the score of its level's greedy episode; returns metrics.

    Greedy episodes are not stored. If one failed in its environment, its level's baseline is None,
    which `remax` treats as 0: any constant is unbiased.
    """
    played = [t for t in greedy if t.status is not Status.ENV_ERROR]
    scores = {t.group_id: sum(turn_rewards(config, t)) for t in played}
    for trajectory in trajectories:
        trajectory.baseline_score = scores.get(trajectory.group_id)
    return {
        "rollout/baseline_score": float(np.mean(list(scores.values()))),
        "rollout/baseline_missing": float(len(greedy) - len(scores)),
    }


def episode_metrics(trajectories: Sequence[Trajectory], prefix: str) -> dict[str, float]:
    """Means over episodes and turns, also per environment if there are several.

    Episodes of failed environments are counted and left out of all means.
    """
    metrics = _metrics_of(trajectories)
    by_config: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        by_config[trajectory.config_id].append(trajectory)
    out = {f"{prefix}/{name}": value for name, value in metrics.items()}
    if len(by_config) > 1:
        for config_id, part in sorted(by_config.items()):
            values = _metrics_of(part)
            out |= {f"{prefix}/{name}/{config_id}": value for name, value in values.items()}
    return out


def check_images(batch: TrajectoryBatch, processor: Processor, folder: Path) -> None:
    """Checks that the blocks of image tokens in every row match its frames.

    Args:
        batch: The batch, before it is written to `folder`.
        processor: Processor of the model.
        folder: An invalid trajectory is saved next to it, as a separate batch.

    Raises:
        BatchError: They differ; the message names the trajectory and its file.
    """
    if not processor.has_vision:
        return
    lengths: dict[str, int] = {}
    for trajectory in batch.trajectories:
        for row in trajectory.rows:
            for digest in row.images:
                if digest not in lengths:
                    height, width, _ = decode_png(batch.images[digest]).shape
                    lengths[digest] = processor.shape_of((width, height)).tokens
            expected = [lengths[digest] for digest in row.images]
            found = processor.image_ids.counts(row.input_ids)
            ends = {0, *accumulate(expected)}
            if sum(found) != sum(expected) or not ends.issuperset(accumulate(found)):
                saved = folder.with_name(f"{folder.name}-refused")
                shown = {digest: batch.images[digest] for digest in set(row.images)}
                replace(batch, trajectories=[trajectory], images=shown).save(saved, replace=True)
                raise BatchError(
                    f"trajectory {trajectory.trajectory_id} has image blocks of {found} tokens, "
                    f"its frames need {expected}; it is saved in {saved}"
                )


def _spread(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Variation of scores between trajectories of one level."""
    valid = [t for t in trajectories if t.status is not Status.ENV_ERROR]
    variance = group_variance([t.score for t in valid], [t.group_id for t in valid])
    return {} if variance is None else {REWARD_VARIANCE: variance}


def _tokens(played: PlayedEpisodes) -> float:
    """Number of sampled tokens of all episodes."""
    return float(sum(int(row.loss_mask.sum()) for t in played.trajectories for row in t.rows))


class _Wins:
    """Running share of successes."""

    def __init__(self) -> None:
        self.count = self.won = 0

    def add(self, trajectory: Trajectory) -> float:
        self.count += 1
        self.won += trajectory.success
        return self.won / self.count


def _metrics_of(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    valid = [t for t in trajectories if t.status is not Status.ENV_ERROR]
    failed = len(trajectories) - len(valid)
    if not valid:
        return {"env_error": float(failed)}
    every = [turn for trajectory in valid for turn in trajectory.turns]
    turns = [turn for turn in every if not turn.summary]
    sampled = [int(row.loss_mask.sum()) for t in valid for row in t.rows]
    kept = [t.parsed.memory == "keep" for t in turns if t.parsed.memory is not None]
    memory = {}
    if kept:
        seen, whole = np.sum([context_tokens(t.rows) for t in valid], 0)
        memory = {"observations_kept": float(np.mean(kept)), "context_saved": 1.0 - seen / whole}

    thoughts = {}
    if lengths := [t.thought_length for t in every if t.thought_length is not None]:
        thoughts = {
            "thought_length": float(np.mean(lengths)),
            "thought_cut": float(np.mean([t.thought_cut for t in every])),
        }

    def share(values: Sequence[bool]) -> float:
        return float(np.mean(values)) if values else 0.0

    return {
        "success": share([t.success for t in valid]),
        "score": float(np.mean([t.score for t in valid])),
        "turns": len(turns) / len(valid),
        "format_correct": share([t.parsed.format_correct for t in turns]),
        "action_is_valid": share([t.metrics.action_is_valid for t in turns]),
        "action_is_effective": share([t.metrics.action_is_effective for t in turns]),
        "response_length": float(np.sum(sampled) / max(len(every), 1)),
        "length_cut": share([t.length_cut for t in every]),
        "truncated": share([t.truncated for t in valid]),
        "truncated_tokens": share([t.status is Status.TRUNCATED_TOKENS for t in valid]),
        "env_error": float(failed),
        **memory,
        **thoughts,
    }
