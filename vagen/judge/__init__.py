"""World-model reasoning reward: scores descriptions of observations and predictions.

A judge implements `score` of `vagen.judge.base.Judge`; `vagen.judge.scoring.judge_of` chooses one
by `judge.type`.
"""

from vagen.judge.base import Judge
from vagen.judge.cache import AnswerCache
from vagen.judge.llm import CascadeJudge, ChatClient, LLMJudge
from vagen.judge.rule_judge import RuleJudge, Rules, rules_for

__all__ = [
    "AnswerCache",
    "CascadeJudge",
    "ChatClient",
    "Judge",
    "LLMJudge",
    "RuleJudge",
    "Rules",
    "rules_for",
]
