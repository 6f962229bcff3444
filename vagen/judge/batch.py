"""Judges the agent's descriptions and predictions, turn by turn, and sets the rewards for them."""

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np

from vagen import progress
from vagen.config.judge_options import AlarmConfig, JudgeConfig
from vagen.config.schema import ExperimentConfig
from vagen.judge.base import RIGHT, SECTIONS, JudgeUnavailable, cohen_kappa
from vagen.judge.cache import AnswerCache
from vagen.judge.deductions import deduct
from vagen.judge.scoring import Scorer, set_rewards, statements
from vagen.metrics import JUDGE_SCORES, SUCCESS
from vagen.rollout.runner import derive_seed
from vagen.rollout.types import NOTHING, SectionScores, Status, Trajectory, Turn, Verdict

CHANGE = 0.05
"""Rise of the score and fall of success that raise the alarm."""


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
            config.judge, trajectories, iteration=iteration, iterations=iterations, blind=blind
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


def schedule_factor(judge: JudgeConfig, iteration: int, iterations: int) -> float:
    """Factor on the judge's weights in an iteration: 1 at first, `floor` after the decay.

    Args:
        judge: The `judge` section with a `schedule`.
        iteration: Index of the iteration, from 0.
        iterations: Iterations of the run, for a schedule without a length.
    """
    schedule = judge.schedule
    if schedule.type == "constant":
        return 1.0
    progress = min(iteration / (schedule.iterations or iterations), 1.0)
    left = 1 - progress if schedule.type == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return schedule.floor + (1 - schedule.floor) * left


def cap_factor(trajectories: Sequence[Trajectory], most_share: float | None) -> float:
    """Factor that limits the deviation of judge rewards to a share of that of other rewards.

    Deviations are of sums over trajectories, without failed ones.

    Args:
        trajectories: A batch with judge rewards.
        most_share: `judge.schedule.max_return_share`; None for no cap.

    Returns:
        A factor in [0, 1]; 0 if judge rewards differ and others do not.
    """
    if most_share is None:
        return 1.0
    played = [t for t in trajectories if t.status is not Status.ENV_ERROR]
    if not played:
        return 1.0
    sums = np.array([_sums(trajectory) for trajectory in played])
    of_judge, others = sums.std(0)
    return 1.0 if of_judge <= most_share * others else float(most_share * others / of_judge)


def weigh(
    judge: JudgeConfig,
    trajectories: Sequence[Trajectory],
    *,
    iteration: int,
    iterations: int,
    blind: Mapping[str, SectionScores],
) -> dict[str, float]:
    """Sets the judge rewards of a judged batch by schedule, cap and chance level.

    Returns:
        Metrics.
    """
    judged = [
        (turn, blind.get(trajectory.config_id, NOTHING))
        for trajectory in trajectories
        for turn in trajectory.turns
        if turn.verdict is not None
    ]

    def scale(factor: float) -> None:
        for turn, chance in judged:
            set_rewards(judge, turn, factor, chance)

    factor = schedule_factor(judge, iteration, iterations)
    scale(factor)
    cap = cap_factor(trajectories, judge.schedule.max_return_share)
    if cap < 1:
        scale(factor * cap)
    metrics = {"judge/weight_factor": factor * cap}
    for section in SECTIONS:
        if chances := [x for _, chance in judged if (x := getattr(chance, section)) is not None]:
            metrics[f"judge/blind_{section}"] = float(np.mean(chances))
    return metrics


def _sums(trajectory: Trajectory) -> tuple[float, float]:
    """Sums of a trajectory's judge rewards and of its other rewards."""
    of_judge = others = 0.0
    for turn in trajectory.turns:
        for value in (turn.rewards.judge_observation, turn.rewards.judge_prediction):
            of_judge += value or 0.0
        others += turn.rewards.env + turn.rewards.format
    return of_judge, others


@dataclass(frozen=True, slots=True)
class Alarm:
    """Trends of judge score and success over a window of iterations.

    When agents hacked the reward in the original experiments, their texts satisfied the judge in
    any state, while their success dropped.
    """

    rise: float
    """Mean judge score of the later half minus that of the earlier half."""
    fall: float
    """Success of the earlier half minus that of the later half."""
    correlation: float
    """Pearson correlation of judge score and success over the window; 0 if one is constant."""
    raised: bool
    """Whether rise and fall both reach `CHANGE`."""

    def metrics(self) -> dict[str, float]:
        """Metrics of the iteration."""
        return {
            "judge/alarm": float(self.raised),
            "judge/alarm_rise": self.rise,
            "judge/alarm_fall": self.fall,
            "judge/success_correlation": self.correlation,
        }

    @property
    def message(self) -> str:
        """Message for the user."""
        return (
            f"the judge's mean score rose by {self.rise:.3f} while success fell by "
            f"{self.fall:.3f}: look at what the agent writes, it may satisfy the judge whatever "
            "the state (docs/judge.md)"
        )


def watch(config: AlarmConfig, history: Sequence[Mapping[str, float]]) -> Alarm | None:
    """Compares the two halves of the last iterations.

    Args:
        config: The window.
        history: Metrics of iterations, oldest first; iterations without success or judge score are
            ignored.

    Returns:
        None if disabled or if the window is not full.
    """
    rows = [
        (float(np.mean([row[name] for name in JUDGE_SCORES if name in row])), row[SUCCESS])
        for row in history
        if SUCCESS in row and any(name in row for name in JUDGE_SCORES)
    ]
    if not config.enable or len(rows) < config.window:
        return None
    scores, successes = np.array(rows[-config.window :]).T
    half = config.window // 2
    rise = float(scores[-half:].mean() - scores[:half].mean())
    fall = float(successes[:half].mean() - successes[-half:].mean())
    varies = scores.std() > 0 and successes.std() > 0
    correlation = float(np.corrcoef(scores, successes)[0, 1]) if varies else 0.0
    return Alarm(rise, fall, correlation, raised=min(rise, fall) >= CHANGE)
