"""The judge step: scores a batch and adds judge rewards."""

from pathlib import Path
from typing import Any

from vagen import progress
from vagen.judge.batch import score, watch
from vagen.judge.scoring import cache_folder
from vagen.rollout.types import SectionScores
from vagen.run.run import Run
from vagen.stages.batches import commit_batch, read_batch
from vagen.stages.build import load_levels
from vagen.stages.judge_answers import AnswerJournal


def judge(
    run: Run, iteration: int, source: Path | None = None, out: Path | None = None
) -> dict[str, Any]:
    """Scores a rollout batch and commits it with verdicts and judge rewards.

    Answers of a language model are stored at once, so that a repeated step requests only the rest.

    Raises:
        JudgeUnavailable: The share of absent verdicts exceeds `judge.max_absent`.
    """
    batch, source = read_batch(run, "judge", iteration, source)
    journal = AnswerJournal(run.path, run.mirror) if run.mirror is not None else None
    metrics = score(
        run.experiment,
        batch.trajectories,
        cache=cache_folder(run.infra),
        iteration=iteration,
        journal=journal,
        blind=_blind(run),
    )
    metrics |= _watch(run, iteration, batch.metrics | metrics)
    done = commit_batch(run, "judge", batch, metrics, source, out)
    if journal is not None:
        journal.clear()
    return done


def _blind(run: Run) -> dict[str, SectionScores]:
    """Chance-level scores by environment id."""
    if not run.experiment.judge.above_chance:
        return {}
    return {each.config_id: each.blind for each in load_levels(run)}


def _watch(run: Run, iteration: int, metrics: dict[str, float]) -> dict[str, float]:
    """Warns if judge scores rise while success falls; returns metrics."""
    if not run.experiment.judge.use_state_reward:
        return {}
    alarm = watch(run.experiment.judge.alarm, [*run.iteration_metrics()[:iteration], metrics])
    if alarm is None:
        return {}
    if alarm.raised:
        found = {"rise": alarm.rise, "fall": alarm.fall, "correlation": alarm.correlation}
        progress.event("judge_alarm", iteration=iteration, **found)
        progress.note(f"iteration {iteration + 1}: {alarm.message}")
    return alarm.metrics()
