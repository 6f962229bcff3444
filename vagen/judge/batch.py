"""Judges the agent's descriptions and predictions, turn by turn."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np

from vagen import progress
from vagen.config.schema import ExperimentConfig
from vagen.judge.base import RIGHT, SECTIONS, JudgeUnavailable, cohen_kappa
from vagen.judge.cache import AnswerCache
from vagen.judge.deductions import deduct
from vagen.judge.schedule import weigh
from vagen.judge.scoring import Scorer, statements
from vagen.rollout.runner import derive_seed
from vagen.rollout.types import SectionScores, Trajectory, Turn, Verdict


class AnswerLog(Protocol):
    """Stores the answers of a step that may be interrupted."""

    def attach(self, cache: AnswerCache) -> None:
        """Adds stored answers to the cache, and records new ones."""
        ...

    def save_if_due(self) -> None:
        """Stores new answers from time to time."""
        ...


def score(
    config: ExperimentConfig,
    trajectories: list[Trajectory],
    *,
    cache: Path | None = None,
    iteration: int | None = None,
    journal: AnswerLog | None = None,
    blind: Mapping[str, SectionScores] = MappingProxyType({}),
) -> dict[str, float]:
    """Sets `verdict` and judge rewards of every turn in place; returns metrics.

    Judges only turns with a format reward, once each: an engine may already have judged episodes
    during play. A missing score gives a reward part of None and is counted.

    Args:
        config: The experiment.
        trajectories: A batch.
        cache: Folder of the cache of answers; None disables it.
        iteration: Index of the iteration, for `judge.schedule`; None for an evaluation with full
            weights.
        journal: Stores answers in the run's store as well.
        blind: Chance-level scores in training, by environment id.

    Raises:
        JudgeUnavailable: The share of absent verdicts exceeds `judge.max_absent`.
    """
    if not config.judge.use_state_reward:
        return {}
    usage = asyncio.run(_score(config, trajectories, cache, iteration, journal))
    judged = [turn for t in trajectories for turn in statements(t, config.judge)]
    metrics = usage | _metrics(judged, trajectories)
    _check_absent(config, judged)
    if iteration is not None:
        iterations = config.trainer.total_training_steps
        metrics |= weigh(
            config.judge,
            trajectories,
            iteration=iteration,
            iterations=iterations,
            blind=blind,
        )
    return metrics


async def _score(
    config: ExperimentConfig,
    trajectories: list[Trajectory],
    cache: Path | None,
    iteration: int | None,
    journal: AnswerLog | None,
) -> dict[str, float]:
    count = sum(1 for t in trajectories for _ in statements(t, config.judge))
    async with Scorer(config, cache=cache) as scorer:
        with progress.bar("statements", count) as advance:
            pending = 0
            if journal is not None and scorer.cache is not None:
                journal.attach(scorer.cache)

            def on_judged() -> None:
                nonlocal pending
                pending += 1
                if pending == 64:
                    advance(pending)
                    pending = 0
                if journal is not None:
                    journal.save_if_due()

            await scorer.score_all(trajectories, on_judged)
            progress.measured(scorer.performance)
        if iteration is None:
            return scorer.usage
        seed = derive_seed(config.seed, "judge", iteration)
        return scorer.usage | deduct(config.judge, scorer.readers, trajectories, seed=seed)


def _metrics(judged: list[Turn], trajectories: list[Trajectory]) -> dict[str, float]:
    turns = sum(not turn.summary for trajectory in trajectories for turn in trajectory.turns)
    verdicts = [turn.verdict for turn in judged if turn.verdict is not None]
    metrics = {"judge/judged_share": len(judged) / max(turns, 1)}
    for part in SECTIONS:
        found = [getattr(verdict, part) for verdict in verdicts]
        scores = [score for score in found if score is not None]
        metrics[f"judge/{part}_missing"] = float(len(verdicts) - len(scores))
        if scores:
            metrics[f"judge/{part}"] = float(np.mean(scores))
    flags = [flag for verdict in verdicts for flag in verdict.flags]
    metrics["judge/flagged"] = len(flags) / max(len(judged), 1)
    absent = _absent(judged)
    metrics["judge/absent_share"] = absent.total() / max(_requested(judged), 1)
    for section_and_reason, count in absent.items():
        metrics[f"judge/absent/{section_and_reason.replace(':', '_')}"] = float(count)
    decided = [place.partition(":")[2] for v in verdicts for place in v.decided_by]
    for source, count in Counter(decided).items():
        metrics[f"judge/decided_by_{source}"] = count / len(decided)
    return metrics | _agreement(verdicts)


def _agreement(verdicts: list[Verdict]) -> dict[str, float]:
    """Cohen's kappa of the two judges on sections that both scored."""
    pairs = [
        (first >= RIGHT, second >= RIGHT)
        for verdict in verdicts
        for part in SECTIONS
        if (first := getattr(verdict, part)) is not None
        and (second := getattr(verdict.second, part, None)) is not None
    ]
    if not pairs:
        return {}
    metrics = {"judge/kappa_statements": float(len(pairs))}
    kappa = cohen_kappa([a for a, _ in pairs], [b for _, b in pairs])
    return metrics if kappa is None else metrics | {"judge/kappa": kappa}


def _absent(judged: list[Turn]) -> Counter[str]:
    """Number of missing scores by `<section>:<reason>`."""
    return Counter(place for turn in judged if turn.verdict for place in turn.verdict.absent)


def _requested(judged: list[Turn]) -> int:
    """Number of requested scores."""
    return sum(getattr(turn.parsed, part) is not None for turn in judged for part in SECTIONS)


def _check_absent(config: ExperimentConfig, judged: list[Turn]) -> None:
    """Warns of missing scores; raises if they exceed `judge.max_absent`."""
    absent = _absent(judged)
    if not absent:
        return
    requested = _requested(judged)
    reasons = ", ".join(f"{count} {place}" for place, count in absent.most_common())
    message = f"{absent.total()} of {requested} verdicts could not be had ({reasons})"
    if absent.total() > config.judge.max_absent * requested:
        raise JudgeUnavailable(
            f"{message}, more than `judge.max_absent` = {config.judge.max_absent:g} allows: see "
            f"that {config.judge.llm.model} answers and run the step again, it asks for these "
            "only"
        )
    progress.note(f"judge: {message}")
