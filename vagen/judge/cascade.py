"""Judges by the gate, then by rules, then by a language model if the rules cannot decide."""

from dataclasses import dataclass

from vagen.envs.base import State
from vagen.judge.llm.llm_judge import LLMJudge, SectionVerdict
from vagen.judge.rule_judge import RuleJudge

_UNREAD = frozenset({"no_entity"})
"""Flags of the rules for missing content, which may be in text that they did not understand."""


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
