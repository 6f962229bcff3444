"""Measures a judge on statements of known truth."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from vagen.judge.base import Judge, cohen_kappa
from vagen.judge.calibration.samples import Sample
from vagen.judge.calibration.writer import TextKind

INFORMATION_STATES = 12
"""Number of states of other episodes to compare a text with."""
CLEAR = (TextKind.TRUE, TextKind.FALSE, TextKind.PARTIAL)
"""Kinds of statements that are clearly correct and complete or clearly not."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A statement and its verdict."""

    sample: Sample
    score: float | None
    flags: tuple[str, ...]
    information: float | None = None
    """Score minus the mean score of the same text against states of other episodes."""

    @property
    def accepted(self) -> bool:
        """Whether the judge accepts it as correct and complete."""
        return self.score is not None and self.score >= THRESHOLD

    @property
    def is_mistake(self) -> bool:
        """Whether the judge is wrong about it."""
        return (
            self.score is not None
            and self.sample.kind is not TextKind.TEMPLATE
            and self.accepted != (self.sample.kind is TextKind.TRUE)
        )


THRESHOLD = 0.99
"""Minimum score of an accepted statement."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Quality of a judge in one environment."""

    env_name: str
    statements: int
    absent: int
    """Number of statements without a verdict, which no other metric includes."""
    precision: float | None
    """Share of accepted statements that are correct and complete, over all kinds but templates,
    which may be correct by chance. None if none is accepted."""
    recall: float
    """Share of correct and complete statements that are accepted."""
    unread: float
    """Share of correct and complete statements that are not understood."""
    kappa: float | None
    """Cohen's kappa of acceptance and truth over true, false and partial statements."""
    chance: float
    """Mean score of correct descriptions of other states, the value of a guess."""
    mean_scores: dict[str, float]
    """Mean score by kind."""
    information: dict[str, float]
    """Mean information score by kind."""
    refused: float
    """Share of adversarial statements that are flagged."""
    paid: float
    """Share of adversarial statements with a score above 0."""
    worst_attack: tuple[str, float]
    """The adversarial pattern with the largest mean score."""
    attack_patterns: int
    recall_by_wording: dict[str, float]
    flags: dict[str, int]
    """Number of rejections by flag."""
    cost: dict[str, float]
    """`seconds` and, if the judge counts them, `calls` and tokens."""
    judged: list[Judged] = field(default_factory=list, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Content of `calibration.json`: everything but the statements."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "judged"}


async def measure(
    judges: Sequence[Judge],
    env_name: str,
    samples: Sequence[Sample],
    *,
    information_texts: int = 500,
    usage: Callable[[], Mapping[str, float]] = dict,
) -> Calibration:
    """Judges every statement and compares the verdicts with the truth.

    Args:
        judges: One judge per configuration of the environment.
        env_name: Environment of the statements.
        samples: Statements of all kinds.
        information_texts: Number of true, vague and template texts to measure the information score
            on, each with `INFORMATION_STATES` further verdicts; 0 disables it.
        usage: Returns the judges' usage so far, such as calls and tokens.
    """
    before = dict(usage())
    start = time.perf_counter()
    verdicts = await asyncio.gather(
        *(_score(judges, sample, sample.scene.state) for sample in samples)
    )
    seconds = time.perf_counter() - start
    spent = {name: n - before.get(name, 0) for name, n in usage().items()}
    judged = [Judged(each, *found) for each, found in zip(samples, verdicts, strict=True)]
    judged = await _informed(judges, judged, information_texts)
    chance = await _chance(judges, samples, information_texts)
    return _summary(env_name, judged, chance, {"seconds": round(seconds, 3), **spent})


async def _score(
    judges: Sequence[Judge], sample: Sample, state: Any
) -> tuple[float | None, tuple[str, ...]]:
    """Scores a text, a prediction as if the state were the next one; 0 if not understood."""
    observed = sample.section == "observation"
    texts = (sample.text, None) if observed else (None, sample.text)
    verdict = await judges[sample.scene.variant].score(*texts, state, state)
    score = verdict.observation if observed else verdict.prediction
    unread = f"{sample.section}:not_understood" in verdict.flags
    return 0.0 if unread else score, verdict.flags


async def _informed(judges: Sequence[Judge], judged: list[Judged], texts: int) -> list[Judged]:
    """Adds information scores to the first `texts` statements of each applicable kind."""
    rng, done = Random("information"), Counter[TextKind]()
    scenes = [each.sample.scene for each in judged]
    result: list[Judged] = []
    for each in judged:
        kind = each.sample.kind
        if (
            kind not in (TextKind.TRUE, TextKind.VAGUE, TextKind.TEMPLATE)
            or done[kind] >= texts
            or each.score is None
        ):
            result.append(each)
            continue
        done[kind] += 1
        own = each.sample.scene
        pool = [
            scene
            for scene in rng.sample(scenes, min(4 * INFORMATION_STATES, len(scenes)))
            if scene.seed != own.seed and scene.variant == own.variant
        ][:INFORMATION_STATES]
        others = await asyncio.gather(*(_score(judges, each.sample, scene.state) for scene in pool))
        scores = [score for score, _ in others if score is not None]
        information = each.score - float(np.mean(scores)) if scores else None
        result.append(Judged(each.sample, each.score, each.flags, information))
    return result


async def _chance(judges: Sequence[Judge], samples: Sequence[Sample], count: int) -> float:
    """Mean score of correct descriptions of states in other episodes of the same variant."""
    rng = Random("chance")
    true = [sample for sample in samples if sample.kind is TextKind.TRUE][: max(count, 200)]
    scores: list[float] = []
    for sample in true:
        scene = rng.choice(true).scene
        if scene.variant != sample.scene.variant or scene.seed == sample.scene.seed:
            continue
        score, _ = await _score(judges, sample, scene.state)
        scores += [] if score is None else [score]
    return float(np.mean(scores)) if scores else 0.0


def _summary(
    env_name: str, judged: list[Judged], chance: float, cost: dict[str, float]
) -> Calibration:
    present = [each for each in judged if each.score is not None]
    accepted = [
        each for each in present if each.accepted and each.sample.kind is not TextKind.TEMPLATE
    ]
    right = [each for each in present if each.sample.kind is TextKind.TRUE]
    hits = sum(each.accepted for each in right)
    adversarial = [each for each in present if each.sample.kind is TextKind.ADVERSARIAL]
    attacks = _means((each.sample.wording, each.score) for each in adversarial)
    flags = Counter(flag.partition(":")[2] for each in judged for flag in each.flags)
    return Calibration(
        env_name=env_name,
        statements=len(judged),
        absent=len(judged) - len(present),
        precision=hits / len(accepted) if accepted else None,
        recall=hits / len(right) if right else 0.0,
        unread=_mean(any("not_understood" in flag for flag in each.flags) for each in right),
        kappa=cohen_kappa(
            [each.accepted for each in present if each.sample.kind in CLEAR],
            [each.sample.kind is TextKind.TRUE for each in present if each.sample.kind in CLEAR],
        ),
        chance=chance,
        mean_scores=_means((str(each.sample.kind), each.score) for each in present),
        information=_means((str(each.sample.kind), each.information) for each in judged),
        refused=_mean(bool(each.flags) for each in adversarial),
        paid=_mean(bool(each.score) for each in adversarial),
        worst_attack=max(attacks.items(), key=lambda item: item[1], default=("", 0.0)),
        attack_patterns=len(attacks),
        recall_by_wording=_means((each.sample.wording, each.accepted) for each in right),
        flags=dict(flags.most_common()),
        cost=cost,
        judged=judged,
    )


def _mean(holds: Iterable[bool]) -> float:
    values = list(holds)
    return sum(values) / len(values) if values else 0.0


def _means(named: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    """Means of the values that there are, by name, to four decimals."""
    found: dict[str, list[float]] = defaultdict(list)
    for name, value in named:
        if value is not None:
            found[name].append(value)
    return {name: round(float(np.mean(values)), 4) for name, values in sorted(found.items())}
