"""The rule judge, and an environment's rules: a text's claims are compared with the truth."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vagen.envs.base import AgentEnv, State
from vagen.envs.claims import Claim, write_claims
from vagen.envs.config import EnvConfig
from vagen.envs.registry import get_environment
from vagen.judge.gate import is_far_too_long, same_words, text_flags
from vagen.rollout.types import Verdict

Claims = tuple[Claim, ...]
MAX_MENTIONS = 3


@dataclass(frozen=True, slots=True)
class Reading:
    """Result of parsing a text. Depends on the text only, so it can be cached."""

    content: Claims
    """Claims of a text; empty if a gate rejected it."""
    flags: tuple[str, ...] = field(default=())
    """Reasons for score 0 whatever the truth, e.g. `no_entity`, `contradiction`."""
    understood: bool = True
    """Whether every meaningful word and mark was used. Otherwise the text has no score from rules
    alone, and a cascade passes it to the next judge."""
    rejected: bool = False
    """Whether a gate rejected the text unread."""


class Rules:
    """Parses state texts with the environment's reader, and scores their claims.

    Immutable: `read` depends only on the text and `truth` only on the state, so both can be cached,
    and `score` is the cost per statement.
    """

    vocabulary: frozenset[str]
    """Lower-case words of state descriptions. Using them is not copying from the prompt, and texts
    that differ in one of them are not near duplicates."""

    def __init__(self, env: type[AgentEnv], config: EnvConfig | None = None) -> None:
        """Creates the rules of an environment with these options; None for the defaults."""
        self.env, self.config = env, config or env.config_class()
        self.kinds = {kind.claim_name(): kind for kind in env.claims_of(self.config)}
        self.env_name = env.env_name
        words = set().union(*(kind.claim_words() for kind in self.kinds.values()))
        self.vocabulary = frozenset(words)

    def read(self, text: str) -> Reading:
        """The claims of a text."""
        found = self.env.read_claims(text, self.config)
        return Reading((), understood=False) if found is None else self.reading_of(found)

    def reading_of(self, found: Sequence[Claim]) -> Reading:
        """A reading of these claims, with flags that do not depend on the truth."""
        flags = []
        if not found:
            flags.append("no_entity")
        single = dict.fromkeys(claim for claim in found if not claim.several)
        if len(single) < len(found) and any(found.count(c) >= MAX_MENTIONS for c in single):
            flags.append("repeated")
        topics = [claim.topic() for claim in single if claim.subject is not None]
        if len(set(topics)) < len(topics):
            flags.append("contradiction")
        claims = (*single, *(claim for claim in found if claim.several))
        return Reading(claims, tuple(flags))

    def quoted(self, given: Sequence[dict[str, Any]], text: str) -> list[Claim]:
        """A language model's claims whose quotes occur in the text."""
        found = []
        for fields in given:
            quote = " ".join(fields["quote"].lower().split())
            own = {name: fields[name] for name in fields if name not in ("claim", "quote")}
            claim = self.kinds[fields["claim"]].from_fields(own)
            if claim is not None and quote and quote in " ".join(text.lower().split()):
                found.append(claim)
        return found

    def truth(self, state: State) -> Claims:
        """The claims of a complete description."""
        return tuple(self.env.truth(state, self.config))

    def score(self, content: Claims, truth: Claims) -> tuple[float, tuple[str, ...]]:
        """Scores claims without flags against the truth; 0 for a list of far more than the truth.

        Returns:
            A score in [0, 1], and reasons for a score of 0 that depend on the truth.
        """
        kinds, facts = list(map(type, content)), list(map(type, truth))
        if any(kinds.count(kind) > kind.most(facts.count(kind)) for kind in set(kinds)):
            return 0.0, ("listing",)
        return self.env.score_claims(content, truth, self.config), ()

    def recall(self, content: Claims, truth: Claims) -> float:
        """Share of the truth's slots that some claim about the same subject has right, in [0, 1].

        The score of a judge without a gate (`judge.gate`), which ignores wrong claims.
        """
        slots = [
            any(getattr(claim, slot) == getattr(fact, slot) for claim in about)
            for fact in truth
            for about in [[claim for claim in content if claim.topic() == fact.topic()]]
            for slot in type(fact).model_fields
            if slot not in (fact.subject or ())
        ]
        return sum(slots) / len(slots) if slots else 0.0

    def has_changed(self, content: Claims, before: Claims, after: Claims) -> bool:
        """Whether something that a text describes has changed."""
        topics = {claim.topic() for claim in content}
        then, now = ([c for c in claims if c.topic() in topics] for claims in (before, after))
        for fact in then:
            still = next((n for n, later in enumerate(now) if fact.is_still(later)), None)
            if still is None:
                return True
            now.pop(still)
        return bool(now)

    def describe(self, state: State) -> str:
        """The truth in the phrases of the claims; equal for states with equal verdicts."""
        return write_claims(self.truth(state))


def rules_for(env_name: str, env_config: EnvConfig | None = None) -> Rules | None:
    """The rules of an environment with its options; None if it declares no claims."""
    env = get_environment(env_name).load()
    return Rules(env, env_config) if env.claims else None


@dataclass(eq=False)
class RuleJudge:
    """Scores state descriptions by the rules of their environment.

    A text that the gate rejects scores 0 with the flag `<section>:<reason>`. A missing section
    (None), an environment without rules, and a text that is `not_understood` have no score, which
    differs from 0. Readings of texts are cached.
    """

    rules: Rules | None
    """Rules of the environment; None if it has none."""
    prompt: str | None = None
    """The system prompt, to reject copied text."""
    gate: bool = True
    """False rejects nothing and scores recall only (`judge.gate`)."""
    max_tokens: int = 200
    """Maximum words and marks of a text."""
    cache_size: int = 16_384
    """Maximum number of cached readings."""

    def __post_init__(self) -> None:
        self._read = lru_cache(maxsize=self.cache_size)(self._read_text)

    async def score(
        self, observation: str | None, prediction: str | None, state: State, next_state: State
    ) -> Verdict:
        """Scores `observation` against `state` and `prediction` against `next_state`."""
        return self.score_sync(observation, prediction, state, next_state)

    def score_sync(
        self, observation: str | None, prediction: str | None, state: State, next_state: State
    ) -> Verdict:
        """Synchronous `score`."""
        rules = self.rules
        if rules is None:
            return Verdict(observation=None, prediction=None)
        flags: list[str] = []
        observation_score = prediction_score = None
        if observation is not None:
            truth = rules.truth(state)
            observation_score, reasons = self._compare(self.read(observation), truth)
            flags += [f"observation:{reason}" for reason in reasons]
        if prediction is not None:
            truth = rules.truth(next_state)
            prediction_score, reasons = self._compare(self.read(prediction), truth)
            if (
                observation is not None
                and not reasons
                and self.gate
                and same_words(observation, prediction)
                and rules.has_changed(self._read(prediction).content, rules.truth(state), truth)
            ):
                prediction_score, reasons = 0.0, ("copied_observation",)
            flags += [f"prediction:{reason}" for reason in reasons]
        return Verdict(observation_score, prediction_score, tuple(flags))

    def scores(self, text: str, truths: Sequence[Claims]) -> NDArray[np.float64] | None:
        """Scores of one text against many truths (`Rules.truth`), float64 [len(truths)].

        Returns:
            None if the text is not understood.
        """
        reading = self.read(text)
        if self.gate and not reading.understood and not reading.flags:
            return None
        return np.array([self._compare(reading, truth)[0] for truth in truths])

    def read(self, text: str) -> Reading:
        """The reading of a text by the rules; with the reasons in `flags` if it is `rejected`."""
        if is_far_too_long(text, self.max_tokens):
            return Reading((), ("too_long",), rejected=True)
        return self._read(text)

    def _compare(self, reading: Reading, truth: Claims) -> tuple[float | None, tuple[str, ...]]:
        """Score and flags; no score if the text is not understood."""
        assert self.rules is not None
        if not self.gate:
            return self.rules.recall(reading.content, truth), ()
        if reading.flags:
            return 0.0, reading.flags
        if not reading.understood:
            return None, ("not_understood",)
        return self.rules.score(reading.content, truth)

    def _read_text(self, text: str) -> Reading:
        assert self.rules is not None
        flags: tuple[str, ...] = ()
        if self.gate:
            flags = text_flags(
                text,
                max_tokens=self.max_tokens,
                prompt=self.prompt,
                vocabulary=self.rules.vocabulary,
            )
        return Reading((), flags, rejected=True) if flags else self.rules.read(text)
