"""A language model as judge, which extracts claims or verifies whole statements.

In environments with claims it lists the claims of a text without knowing the truth, and rules
compare them: the score is the rule judge's. Otherwise it gets the truth and decides whether the
text agrees. A cascade asks rules first.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic import ValidationError

from vagen.clients import DEADLINE, NoAnswerError
from vagen.config.judge_options import LLMJudgeConfig
from vagen.envs.base import State
from vagen.judge.base import SECTIONS
from vagen.judge.cache import AnswerCache, content_key, normalized
from vagen.judge.gate import same_words, text_flags
from vagen.judge.llm.client import ChatClient, Question
from vagen.judge.llm.prompts import (
    PROMPT_VERSION,
    AnswerT,
    Role,
    Verification,
    claims_answer,
    claims_extractor,
    read_claims,
    read_verification,
    verifier,
)
from vagen.judge.rule_judge import Reading, RuleJudge, Rules
from vagen.rollout.types import Verdict

_COPIED = "copied_observation"
_UNREAD = frozenset({"no_entity"})
"""Flags of the rules for missing content, which may be in text that they did not understand."""


@dataclass(frozen=True, slots=True)
class SectionVerdict:
    """The score of one text."""

    score: float | None
    flags: tuple[str, ...] = field(default=())
    absent: str = ""
    """Reason for a missing score."""
    decided_by: str = ""
    reading: Reading | None = None
    """The reading of the text, if any."""


@dataclass(eq=False)
class LLMJudge:
    """Scores state descriptions with a language model, except for texts that the gate rejects.

    Equal questions are asked once: concurrent ones wait for the same answer, and answers are
    cached. A missing answer gives an absent score with the reason, and is not cached.
    """

    client: ChatClient
    env_name: str
    rules: Rules | None
    """Rules of the environment, which know the truth of a state; None if it has none."""
    prompt: str | None = None
    """Its system prompt, to reject copied text."""
    cache: AnswerCache | None = None
    """Cache of answers; None disables it."""
    max_tokens: int = 200
    """Maximum words and marks of a text."""
    _under_way: dict[str, asyncio.Task[Any]] = field(default_factory=dict)

    async def score(
        self, observation: str | None, prediction: str | None, state: State, next_state: State
    ) -> Verdict:
        """Scores `observation` against `state` and `prediction` against `next_state`.

        Both at once; a prediction with the observation's words is wrong if it is copied.
        """
        texts, states = (observation, prediction), (state, next_state)
        given = [
            (section, text, state)
            for section, text, state in zip(SECTIONS, texts, states, strict=True)
            if text is not None
        ]
        verdicts = await asyncio.gather(*(self.score_section(*each) for each in given))
        found = dict(zip((section for section, _, _ in given), verdicts, strict=True))
        if observation is not None and prediction is not None:
            verdict = found["prediction"]
            if (
                same_words(observation, prediction)
                and verdict.score is not None
                and not verdict.flags
                and self._is_copied(verdict, state, next_state)
            ):
                found["prediction"] = SectionVerdict(0.0, (_COPIED,), decided_by=verdict.decided_by)
        return Verdict(
            observation=found["observation"].score if "observation" in found else None,
            prediction=found["prediction"].score if "prediction" in found else None,
            flags=tuple(f"{name}:{flag}" for name, part in found.items() for flag in part.flags),
            absent=tuple(f"{name}:{part.absent}" for name, part in found.items() if part.absent),
            decided_by=tuple(
                f"{name}:{part.decided_by}" for name, part in found.items() if part.decided_by
            ),
        )

    async def score_section(self, section: str, text: str, state: State) -> SectionVerdict:
        """Scores one text after the gate.

        Args:
            section: `observation` or `prediction`.
            text: The agent's text.
            state: The described state.
        """
        flags = text_flags(
            text,
            max_tokens=self.max_tokens,
            prompt=self.prompt,
            vocabulary=self.rules.vocabulary if self.rules else frozenset(),
        )
        if flags:
            return SectionVerdict(0.0, flags, decided_by="gate")
        return await self.ask(section, text, state)

    async def ask(self, section: str, text: str, state: State) -> SectionVerdict:
        """`score_section` for a text that passed the gate."""
        text = normalized(text)
        tense = "current" if section == SECTIONS[0] else "next"
        try:
            if self.rules is not None:
                return await self._claims(Role(f"{tense}_extractor"), self.rules, text, state)
            return await self._verify(Role(f"{tense}_verifier"), text, state)
        except NoAnswerError as error:
            return SectionVerdict(None, absent=error.reason)

    def _is_copied(self, verdict: SectionVerdict, state: State, next_state: State) -> bool:
        """Whether a prediction with the observation's words is wrong because of that.

        It is wrong if what it describes has changed. If the text was not read, it is wrong if
        anything has changed that the truth depends on.
        """
        rules = self.rules
        if rules is None:
            before, after = (json.dumps(each, sort_keys=True) for each in (state, next_state))
            return before != after
        if verdict.reading is None:
            return rules.describe(state) != rules.describe(next_state)
        before, after = rules.truth(state), rules.truth(next_state)
        return rules.has_changed(verdict.reading.content, before, after)

    async def _claims(self, role: Role, rules: Rules, text: str, state: State) -> SectionVerdict:
        kinds = tuple(rules.kinds.values())
        kind = claims_answer(kinds)
        question = claims_extractor(role, text, kinds)
        key = content_key(role=role, text=text, schema=question.schema, **self._who())
        answer, source = await self._answer(key, question, kind, partial(read_claims, kind))
        reading = rules.reading_of(rules.quoted(answer.model_dump()["claims"], text))
        if reading.flags:
            return SectionVerdict(0.0, reading.flags, decided_by=source)
        score, flags = rules.score(reading.content, rules.truth(state))
        return SectionVerdict(score, flags, decided_by=source, reading=reading)

    async def _verify(self, role: Role, text: str, state: State) -> SectionVerdict:
        truth = json.dumps(state, sort_keys=True)
        key = content_key(
            environment=self.env_name, role=role, text=text, state=truth, **self._who()
        )
        question = verifier(role, text, truth)
        answer, source = await self._answer(key, question, Verification, read_verification)
        return SectionVerdict(float(answer.verdict == "YES"), decided_by=source)

    async def _answer(
        self, key: str, question: Question, kind: type[AnswerT], read: Callable[[str], AnswerT]
    ) -> tuple[AnswerT, str]:
        """The answer to a question, and its source: cache or model."""
        if (kept := self._kept(key, kind)) is not None:
            return kept, "cache"
        if (task := self._under_way.get(key)) is not None:
            return await asyncio.shield(task), "cache"
        task = asyncio.create_task(self._fetch(key, question, read))
        self._under_way[key] = task
        task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return await asyncio.shield(task), "llm"

    def _kept(self, key: str, kind: type[AnswerT]) -> AnswerT | None:
        """The cached answer; deletes an invalid one."""
        value = self.cache.get(key) if self.cache is not None else None
        if self.cache is None or value is None:
            return None
        try:
            return kind.model_validate(value)
        except ValidationError:
            self.cache.drop(key)
            return None

    async def _fetch(self, key: str, question: Question, read: Callable[[str], AnswerT]) -> AnswerT:
        answer = await self.client.ask(question, read)
        if self.cache is not None:
            self.cache.put(key, answer.model_dump(mode="json"))
        return answer

    def _who(self) -> dict[str, Any]:
        """Parts of the cache key besides the question."""
        return {"prompt": PROMPT_VERSION, "model": self.client.name}


@dataclass(eq=False, kw_only=True)
class CascadeJudge(LLMJudge):
    """Asks the language model only where rules cannot decide.

    Rules decide where they understood the whole text. Otherwise the model decides, unless the gate
    rejects the text or the understood part contradicts itself. In environments without rules the
    model always decides.
    """

    reader: RuleJudge
    """A judge with the same rules."""

    async def score_section(self, section: str, text: str, state: State) -> SectionVerdict:
        """Scores one text with the first judge that can."""
        if (rules := self.rules) is None:
            return await super().score_section(section, text, state)
        reading = self.reader.read(text)
        if reading.rejected:
            return SectionVerdict(0.0, reading.flags, decided_by="gate")
        if not reading.understood and _UNREAD.issuperset(reading.flags):
            return await self.ask(section, text, state)
        if reading.flags:
            return SectionVerdict(0.0, reading.flags, decided_by="rules")
        score, flags = rules.score(reading.content, rules.truth(state))
        return SectionVerdict(score, flags, decided_by="rules", reading=reading)


@dataclass(frozen=True, slots=True)
class Probe:
    """Result of a test question."""

    seconds: float
    problem: str = ""
    """Error message; empty if there was an answer."""


async def probe(
    config: LLMJudgeConfig, key: str = "judge.llm", *, seconds: float | None = None
) -> Probe:
    """Asks one question, to check that an endpoint can serve as a judge.

    Args:
        config: The endpoint.
        key: Dotted key of the section, for messages.
        seconds: Timeout for all attempts of `config`; None makes one attempt.

    Raises:
        EndpointError: The endpoint rejects the key or does not know the model, or the key is
            missing.
    """
    start = time.monotonic()
    once = config if seconds is not None else config.model_copy(update={"retries": 0})
    client = ChatClient(once, key=key)
    if seconds is not None:
        DEADLINE.set(asyncio.get_running_loop().time() + seconds)
    try:
        question = verifier(Role.CURRENT_VERIFIER, "the door is left", '{"door": "left"}')
        await client.ask(question, read_verification)
    except NoAnswerError as error:
        return Probe(time.monotonic() - start, str(error))
    finally:
        await client.close()
    return Probe(time.monotonic() - start)
