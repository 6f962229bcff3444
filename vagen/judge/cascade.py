"""Judges by the gate, then by rules, then by a language model if the rules cannot decide."""

from collections.abc import Mapping

from vagen.envs.base import State
from vagen.judge.llm.llm_judge import LLMJudge, SectionVerdict, score_sections
from vagen.judge.rule_judge import RuleJudge, Rules
from vagen.rollout.types import Verdict

_UNREAD = frozenset({"no_entity"})
"""Flags of the rules for missing content, which may be in text that they did not understand."""


class CascadeJudge:
    """Asks the language model only where rules cannot decide.

    Rules decide where they understood the whole text. Otherwise the model decides, unless the gate
    rejects the text or the understood part contradicts itself. In environments without rules the
    model always decides.
    """

    def __init__(
        self, rule_judge: RuleJudge, llm_judge: LLMJudge, rules: Mapping[str, Rules]
    ) -> None:
        """Combines two judges with the same `rules`, by environment name, and prompts."""
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
        """Scores `observation` against `state` and `prediction` against `next_state`."""
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
        """Scores one text with the first judge that can."""
        rules = self._rules.get(env_name)
        if rules is None:
            return await self.llm.score_section(section, env_name, text, state)
        reading = self.reader.read(env_name, text)
        if reading.rejected:
            return SectionVerdict(0.0, reading.flags, decided_by="gate")
        if not reading.understood and _UNREAD.issuperset(reading.flags):
            return await self.llm.ask(section, env_name, text, state)
        if reading.flags:
            return SectionVerdict(0.0, reading.flags, decided_by="rules")
        score, flags = rules.score(reading.content, rules.truth(state))
        return SectionVerdict(score, flags, decided_by="rules", reading=reading)
