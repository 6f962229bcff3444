"""Deductions from a batch's scores, for texts that fit any state and for repeated texts.

Computed after the whole batch is judged. Rules compare each text with other states of the batch, as
a sample of the environment's states. Repeated texts are near duplicates: the same meaning in almost
the same words.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vagen.config.judge_options import JudgeConfig
from vagen.judge.base import SECTIONS
from vagen.judge.rule_judge import RuleJudge
from vagen.rollout.types import SectionScores, Trajectory, Turn

FITS = 0.99
"""Minimum score of a text that fits a state."""
HARDLY, COMMON_SCORE = 0.35, -0.1
"""The most frequent texts with scores below the first get the second (VAGEN)."""
SIMILARITY = 0.7
"""Minimum share of common words of near duplicates."""
_COMPARISONS = 20_000
"""Maximum number of comparisons of texts with states per section of a batch."""
_STATES, _MAX_STATES = 16, 256
"""Fewest and most states per text."""
_WORD = re.compile(r"[a-z]+|\d+")
_EMPTY = re.compile(
    r"\b(?:an?|the|this|that|there|here|i|it|is|are|be|am|and|of|to|from|as|my|your|its|can|see)\b"
)
"""Words without meaning."""


class Stated(NamedTuple):
    """A judged text."""

    turn: Turn
    section: str
    text: str
    score: float


def deduct(
    judge: JudgeConfig,
    readers: Mapping[str, RuleJudge],
    trajectories: Sequence[Trajectory],
    *,
    seed: int,
) -> dict[str, float]:
    """Writes deductions into each verdict (`deducted`); returns metrics."""
    compares = judge.information.enable or judge.repetition.enable
    if not compares and not judge.repetition.top_k:
        return {}
    information: list[float] = []
    charges: list[float] = []
    refused: list[bool] = []
    unread = 0
    for config_id, reader in readers.items():
        batch = [t for t in trajectories if t.config_id == config_id]
        for section in SECTIONS:
            stated = _stated(batch, section)
            if not stated:
                continue
            others = repeated = ()
            if compares:
                others = _scores_elsewhere(reader, batch, stated, seed)
                words = reader.rules.vocabulary if reader.rules else frozenset()
                repeated = _repeated(stated, others, words)
            for each, fits, share in zip(stated, others, repeated, strict=False):
                unread += fits is None
                taken = 0.0
                if fits is not None and judge.information.enable:
                    mean = float(fits.mean()) if fits.size else 0.0
                    information.append(each.score - mean)
                    taken += mean
                if judge.repetition.enable:
                    charges.append(judge.repetition.weight * share)
                    taken += charges[-1]
                _deduct(each, taken)
            if judge.repetition.top_k:
                refused += _refuse_common(stated, judge.repetition.top_k)
    metrics = {"judge/not_compared": float(unread)} if compares else {}
    if refused:
        metrics["judge/refused_repeats"] = float(np.mean(refused))
    if information:
        metrics["judge/information"] = float(np.mean(information))
    if charges:
        metrics["judge/repetition_charge"] = float(np.mean(charges))
    return metrics


def _stated(batch: Sequence[Trajectory], section: str) -> list[Stated]:
    """Texts with a score; 0 if rules did not understand them."""
    found = []
    for trajectory in batch:
        for turn in trajectory.turns:
            score = getattr(turn.verdict, section, None)
            if turn.verdict is not None and f"{section}:not_understood" in turn.verdict.flags:
                score = 0.0
            if score is not None:
                found.append(Stated(turn, section, getattr(turn.parsed, section), score))
    return found


def _deduct(stated: Stated, amount: float) -> None:
    verdict = stated.turn.verdict
    assert verdict is not None
    deducted = replace(verdict.deducted or SectionScores(), **{stated.section: amount})
    stated.turn.verdict = replace(verdict, deducted=deducted)


def _refuse_common(stated: list[Stated], top_k: int) -> list[bool]:
    """Reduces the scores of the most frequent, mostly wrong texts to `COMMON_SCORE`; returns which.

    VAGEN counts at most 1,000 exact texts over the life of its environment service. Here the counts
    are per batch, so that scores do not depend on earlier batches.
    """
    counts = Counter(each.text for each in stated)
    common = {text for text, count in counts.most_common(top_k) if count > 1}
    refused = [each.text in common and each.score < HARDLY for each in stated]
    for each, is_refused in zip(stated, refused, strict=True):
        if is_refused:
            _deduct(each, each.score - COMMON_SCORE)
    return refused


def _scores_elsewhere(
    reader: RuleJudge, batch: Sequence[Trajectory], stated: list[Stated], seed: int
) -> list[NDArray[np.float64] | None]:
    """Scores of each text for states of other episodes; None where rules cannot tell.

    All texts use one sample of states, each without those of its own episode, so that repeated
    texts are compared only once.
    """
    rules = reader.rules
    if rules is None:
        return [None] * len(stated)
    section = stated[0].section
    states = [
        (trajectory.trajectory_id, turn.state if section == "observation" else turn.next_state)
        for trajectory in batch
        for turn in trajectory.turns
    ]
    rng = Random(f"information {seed} {section}")
    distinct = len({each.text for each in stated})
    # With few distinct texts a larger sample is affordable, and its noise matters more.
    size = min(max(_STATES, _COMPARISONS // distinct), _MAX_STATES, len(states))
    sample = rng.sample(states, size)
    episodes = np.array([episode for episode, _ in sample])
    truths = [rules.truth(state) for _, state in sample]
    known: dict[str, NDArray[np.float64] | None] = {}
    found: list[NDArray[np.float64] | None] = []
    for each in stated:
        if each.text not in known:
            known[each.text] = reader.scores(each.text, truths)
        scores = known[each.text]
        if scores is not None:
            scores = scores[episodes != each.turn.trajectory_id]
        found.append(scores)
    return found


def _repeated(
    stated: list[Stated], others: list[NDArray[np.float64] | None], vocabulary: Collection[str]
) -> list[float]:
    """Share of each text's cluster in the batch minus the share of states that the text fits."""
    texts = [each.text for each in stated]
    numbers = clusters(texts, vocabulary)
    sizes = Counter(numbers)
    fitting: dict[int, list[Any]] = defaultdict(list)
    for number, scores in zip(numbers, others, strict=True):
        if scores is not None and scores.size:
            fitting[number].append(float((scores >= FITS).mean()))
    shares: list[float] = []
    for number in numbers:
        fits = float(np.mean(fitting[number])) if fitting[number] else 0.0
        # A single text is not a repetition, however rare its state.
        share = (sizes[number] - 1) / max(len(numbers) - 1, 1)
        shares.append(max(share - fits, 0.0))
    return shares


def clusters(texts: Sequence[str], vocabulary: Collection[str]) -> list[int]:
    """Cluster index of each text.

    A text belongs to a cluster if its numbers and vocabulary words are the same as those of the
    cluster's first text, in order, and the other words of both have a Jaccard index of at least
    `SIMILARITY`, ignoring case, punctuation and order.
    """
    leaders: dict[tuple[str, ...], list[tuple[frozenset[str], int]]] = {}
    known: dict[str, int] = {}
    numbers: list[int] = []
    count = 0
    for text in texts:
        if text not in known:
            kept, others = _signature(text, vocabulary)
            found = leaders.setdefault(kept, [])
            number = next(
                (number for words, number in found if _jaccard(words, others) >= SIMILARITY), None
            )
            if number is None:
                number = count
                count += 1
                found.append((others, number))
            known[text] = number
        numbers.append(known[text])
    return numbers


def _signature(text: str, vocabulary: Collection[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    words = _WORD.findall(text.lower())
    if not words or max(map(len, words)) == 1:  # all of a symbol grid is signature
        return tuple(text.split()), frozenset()
    words = [word for word in words if not _EMPTY.fullmatch(word)]
    kept = tuple(word for word in words if word in vocabulary or word.isdigit())
    return kept, frozenset(words).difference(kept)


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    union = len(one | other)
    return len(one & other) / union if union else 1.0
