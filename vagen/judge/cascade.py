"""Gate, then rules where they decide, then a language model for the remainder."""

from collections.abc import Mapping
from typing import Any

from vagen.envs.base import State
from vagen.judge.llm.llm_judge import LLMJudge, SectionVerdict, score_sections
from vagen.judge.rule_judge import RuleJudge
from vagen.judge.rules import Rules
from vagen.rollout.types import Verdict

_UNREAD = frozenset({"no_entity"})
"""Flags of the rules that say what they did not find, which may be in what they could not read."""


class CascadeJudge:
    """Asks the language model only what the rules leave open.

    The rules decide where they have understood the whole text. A text that they have not is the
    model's, unless the gate refuses it or what they have read refutes itself. Environments without
    rules are the model's wholly.
    """

    def __init__(
        self, rule_judge: RuleJudge, llm_judge: LLMJudge, rules: Mapping[str, Rules[Any, Any]]
    ) -> None:
        """Creates a judge of two that know the same `rules`, by environment name, and prompts."""
        self.reader = rule_judge
        self.llm = llm_judge
        self._rules = rules

    async def score(
        self,
        *,
        env_name: str,
        observation: str | None,
        prediction: str | None,
        state: State,
        next_state: State,
    ) -> Verdict:
        """`observation` against `state`, `prediction` against `next_state`."""
        return await score_sections(
            self.score_section,
            lambda found: self.llm.is_copied(env_name, found, state, next_state),
            env_name=env_name,
            texts=(observation, prediction),
            states=(state, next_state),
        )

    async def score_section(
        self, section: str, env_name: str, text: str, state: State
    ) -> SectionVerdict:
        """Scores one text by the first that can."""
        rules = self._rules.get(env_name)
        if rules is None:
            return await self.llm.score_section(section, env_name, text, state)
        reading = self.reader.read(env_name, text)
        if reading.content is None:
            return SectionVerdict(0.0, reading.flags, decided_by="gate")
        if not reading.understood and _UNREAD.issuperset(reading.flags):
            return await self.llm.ask(section, env_name, text, state)
        if reading.flags:
            return SectionVerdict(0.0, reading.flags, decided_by="rules")
        score, flags = rules.score(reading.content, rules.truth(state))
        return SectionVerdict(score, flags, decided_by="rules", reading=reading)
