"""World-model reasoning reward: how well the agent says what it sees and predicts.

A judge is anything with the `score` of `vagen.judge.base.Judge`; `make_judge` picks one by
`judge.type`.
"""

from collections.abc import Mapping
from typing import Any

from vagen.config.judge_options import JudgeConfig
from vagen.judge.base import Judge
from vagen.judge.cache import AnswerCache
from vagen.judge.cascade import CascadeJudge
from vagen.judge.llm import ChatClient, LLMBackend, LLMJudge
from vagen.judge.rule_judge import RuleJudge
from vagen.judge.rules import Rules, rules_for

__all__ = [
    "AnswerCache",
    "CascadeJudge",
    "ChatClient",
    "Judge",
    "LLMJudge",
    "RuleJudge",
    "Rules",
    "make_judge",
    "rules_for",
]


def make_judge(
    config: JudgeConfig,
    *,
    rules: Mapping[str, Rules[Any, Any]],
    prompts: Mapping[str, str] | None = None,
    client: LLMBackend | None = None,
    cache: AnswerCache | None = None,
) -> Judge:
    """The judge that `config` asks for.

    Args:
        config: `judge` section of the experiment.
        rules: Rules by environment name, as the environments are configured.
        prompts: System prompt by environment name, so that text copied from it is refused.
        client: The endpoint of the language model, which rules alone do not need.
        cache: Answers that were had before; None keeps none.

    Raises:
        ValueError: The judge asks a language model, and there is no client.
    """
    rule_judge = RuleJudge(rules, prompts=prompts, gate=config.gate)
    if config.type == "rule":
        return rule_judge
    if client is None:
        raise ValueError(f"a judge of type {config.type} needs a client of its language model")
    llm_judge = LLMJudge(client, rules=rules, prompts=prompts, cache=cache)
    return llm_judge if config.type == "llm" else CascadeJudge(rule_judge, llm_judge, rules)
