"""World-model reasoning reward: how well the agent says what it sees and predicts.

A judge is anything with the `score` of `vagen.judge.base.Judge`; `make_judge` picks one by
`judge.type`.
"""

from collections.abc import Mapping
from typing import Any

from vagen.config.judge import JudgeConfig
from vagen.judge.base import Judge, Verdict
from vagen.judge.rule_judge import RuleJudge
from vagen.judge.rules import RULES, Rules, rules_for

__all__ = ["RULES", "Judge", "RuleJudge", "Rules", "Verdict", "make_judge", "rules_for"]


def make_judge(
    config: JudgeConfig,
    *,
    rules: Mapping[str, Rules[Any, Any]] | None = None,
    prompts: Mapping[str, str] | None = None,
) -> Judge:
    """The judge that `config` asks for.

    Args:
        config: `judge` section of the experiment.
        rules: Rules by environment name, as the environments are configured; None takes the
            defaults of all that have some.
        prompts: System prompt by environment name, so that text copied from it is refused.
    """
    match config.type:
        case "rule":
            return RuleJudge(rules, prompts=prompts)
