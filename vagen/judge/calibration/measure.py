"""Measures a judge on statements of known worth."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from vagen.judge.agreement import cohen_kappa
from vagen.judge.base import Judge
from vagen.judge.calibration.samples import Sample
from vagen.judge.calibration.writer import TextKind

CLEAR = (TextKind.TRUE, TextKind.FALSE, TextKind.PARTIAL)
"""Kinds that have one right answer to whether they are right and complete."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A statement with its verdict."""

    sample: Sample
    score: float | None
    flags: tuple[str, ...]
    information: float | None = None
    """Score minus the mean score of the same text against states of other episodes."""

    @property
    def accepted(self) -> bool:
        """Whether the judge takes it for right and complete."""
        return self.score is not None and self.score >= THRESHOLD

    @property
    def is_mistake(self) -> bool:
        """Whether the judge and the truth disagree."""
        return (
            self.score is not None
            and self.sample.kind is not TextKind.TEMPLATE
            and self.accepted != (self.sample.kind is TextKind.TRUE)
        )


THRESHOLD = 0.99
"""Score from which on a judge is said to accept a statement."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Quality of a judge on one environment."""

    env_name: str
    statements: int
    absent: int
    """Statements without a verdict; they count in nothing else."""
    precision: float | None
    """Part of the accepted statements that are right and complete; of any kind but templates, which
    are right by chance. None if none is accepted."""
    recall: float
    """Part of the right and complete statements that are accepted."""
    unread: float
    """Part of the right and complete statements that are not understood."""
    kappa: float | None
    """Cohen's kappa of acceptance against the truth, on true, false and partial statements."""
    chance: float
    """Mean score of a right description of one state against another: what a guess earns."""
    mean_scores: dict[str, float]
    """By kind."""
    information: dict[str, float]
    """Mean information score by kind."""
    refused: float
    """Part of the adversarial statements that are flagged."""
    paid: float
    """Part of the adversarial statements that earn anything."""
    worst_attack: tuple[str, float]
    """The adversarial pattern with the largest mean score."""
    attack_patterns: int
    recall_by_wording: dict[str, float]
    flags: dict[str, int]
    """How often each refusal was given."""
    cost: dict[str, float]
    """`seconds` and, of a judge that counts them, its `calls` and tokens."""
    judged: list[Judged] = field(default_factory=list, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """What is written to `calibration.json`: everything but the statements."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "judged"}


def measure(
    judges: Judge | Sequence[Judge],
    env_name: str,
    samples: Sequence[Sample],
    *,
    information_texts: int = 500,
    information_states: int = 12,
) -> Calibration:
    """As `measure_async` without an event loop; one judge may serve all configurations."""
    if not isinstance(judges, Sequence):
        judges = [judges] * (1 + max((sample.scene.variant for sample in samples), default=0))
    return asyncio.run(
        measure_async(
            judges,
            env_name,
            samples,
            information_texts=information_texts,
            information_states=information_states,
        )
    )


async def measure_async(
    judges: Sequence[Judge],
    env_name: str,
    samples: Sequence[Sample],
    *,
    information_texts: int = 500,
    information_states: int = 12,
    usage: Callable[[], Mapping[str, float]] = dict,
) -> Calibration:
    """Has every statement judged and compares the verdicts with the truth.

    Args:
        judges: Any judges, one for each configuration of the environment.
        env_name: Environment of the statements.
        samples: Statements of all kinds.
        information_texts: Of how many true, vague and template texts each the information score is
            measured; 0 leaves it out, since every one takes `information_states` further verdicts.
        information_states: States of other episodes that a text is compared with.
        usage: What the judges have spent so far, such as calls and tokens.
    """
    before = dict(usage())
    start = time.perf_counter()
    verdicts = await asyncio.gather(
        *(_score(judges, env_name, sample, sample.scene.state) for sample in samples)
    )
    seconds = time.perf_counter() - start
    spent = {name: n - before.get(name, 0) for name, n in usage().items()}
    judged = [
        Judged(sample, score, flags)
        for sample, (score, flags) in zip(samples, verdicts, strict=True)
    ]
    judged = await _informed(judges, env_name, judged, information_texts, information_states)
    chance = await _chance(judges, env_name, samples, information_texts)
    return _summary(env_name, judged, chance, {"seconds": round(seconds, 3), **spent})


async def _score(
    judges: Sequence[Judge], env_name: str, sample: Sample, state: Any
) -> tuple[float | None, tuple[str, ...]]:
    """A prediction is judged against the state as the next one; what is not understood earns 0."""
    observed = sample.section == "observation"
    verdict = await judges[sample.scene.variant].score(
        env_name=env_name,
        observation=sample.text if observed else None,
        prediction=None if observed else sample.text,
        state=state,
        next_state=state,
    )
    score = verdict.observation if observed else verdict.prediction
    unread = f"{sample.section}:not_understood" in verdict.flags
    return 0.0 if unread else score, verdict.flags


async def _informed(
    judges: Sequence[Judge], env_name: str, judged: list[Judged], texts: int, states: int
) -> list[Judged]:
    """Adds information scores to the first `texts` of each kind that has them."""
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
            for scene in rng.sample(scenes, min(4 * states, len(scenes)))
            if scene.seed != own.seed and scene.variant == own.variant
        ][:states]
        others = await asyncio.gather(
            *(_score(judges, env_name, each.sample, scene.state) for scene in pool)
        )
        scores = [score for score, _ in others if score is not None]
        information = each.score - float(np.mean(scores)) if scores else None
        result.append(Judged(each.sample, each.score, each.flags, information))
    return result


async def _chance(
    judges: Sequence[Judge], env_name: str, samples: Sequence[Sample], count: int
) -> float:
    """Mean score of right descriptions against states of other episodes of the same variant."""
    rng = Random("chance")
    true = [sample for sample in samples if sample.kind is TextKind.TRUE][: max(count, 200)]
    scores: list[float] = []
    for sample in true:
        scene = rng.choice(true).scene
        if scene.variant != sample.scene.variant or scene.seed == sample.scene.seed:
            continue
        score, _ = await _score(judges, env_name, sample, scene.state)
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
    attacks = _mean_scores(
        (each.sample.wording, each) for each in present if each.sample.kind is TextKind.ADVERSARIAL
    )
    adversarial = [each for each in present if each.sample.kind is TextKind.ADVERSARIAL]
    information: dict[str, list[float]] = defaultdict(list)
    for each in judged:
        if each.information is not None:
            information[each.sample.kind].append(each.information)
    means = {name: float(np.mean(values)) for name, values in information.items()}
    by_wording: dict[str, list[bool]] = defaultdict(list)
    for each in right:
        by_wording[each.sample.wording].append(each.accepted)
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
        mean_scores=_mean_scores((str(each.sample.kind), each) for each in present),
        information={name: round(value, 4) for name, value in sorted(means.items())},
        refused=_mean(bool(each.flags) for each in adversarial),
        paid=_mean(bool(each.score) for each in adversarial),
        worst_attack=max(attacks.items(), key=lambda item: item[1], default=("", 0.0)),
        attack_patterns=len(attacks),
        recall_by_wording={
            name: round(float(np.mean(values)), 4) for name, values in sorted(by_wording.items())
        },
        flags=dict(flags.most_common()),
        cost=cost,
        judged=judged,
    )


def _mean(holds: Iterable[bool]) -> float:
    values = list(holds)
    return sum(values) / len(values) if values else 0.0


def _mean_scores(named: Any) -> dict[str, float]:
    scores: dict[str, list[float]] = defaultdict(list)
    for name, each in named:
        scores[name].append(each.score)
    return {name: round(float(np.mean(values)), 4) for name, values in sorted(scores.items())}
