"""The judge step: scores a batch and adds judge rewards."""

import json
import time
from pathlib import Path
from typing import Any

from vagen import progress
from vagen.judge.batch import score, watch
from vagen.judge.cache import AnswerCache
from vagen.judge.scoring import cache_folder
from vagen.rollout.types import SectionScores
from vagen.run import layout
from vagen.run.mirror import Mirror
from vagen.run.run import Run
from vagen.stages.batches import commit_batch, read_batch
from vagen.stages.build import load_levels
from vagen.storage import read_lines

_EVERY = 20.0
"""Seconds between copies of answers to the store."""


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


class AnswerJournal:
    """Answers of the judge's language model during a step, in the run's store.

    The cache is on the disk of a step's pod and is deleted with it. Answers of an uncommitted step
    are also in a file of the run's folder, which is copied to the store. So the next attempt at the
    step, on any node, does not pay for them again.
    """

    def __init__(self, run_dir: Path, mirror: Mirror) -> None:
        self._path = run_dir / layout.JUDGE_ANSWERS
        self._mirror = mirror
        self._lines: list[str] = []
        self._saved = time.monotonic()

    def attach(self, cache: AnswerCache) -> None:
        """Adds earlier attempts' answers to the cache, and records new ones."""
        for key, value in read_lines(self._path):
            cache.put(key, value)
        cache.on_put = self._note

    def save_if_due(self) -> None:
        """Uploads new answers if `_EVERY` seconds have passed.

        Raises:
            StorageError: The store cannot be used, or a newer attempt took over.
        """
        if self._lines and time.monotonic() - self._saved > _EVERY:
            self.save()

    def save(self) -> None:
        """Uploads new answers.

        Raises:
            StorageError: See `save_if_due`.
        """
        with self._path.open("a") as file:
            file.writelines(self._lines)
        self._lines.clear()
        self._mirror.push_files()
        self._saved = time.monotonic()

    def clear(self) -> None:
        """Deletes the answers of a committed step, whose verdicts are in the batch."""
        self._path.unlink(missing_ok=True)

    def _note(self, key: str, value: Any) -> None:
        self._lines.append(json.dumps([key, value]) + "\n")
