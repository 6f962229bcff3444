"""World-model reasoning reward: scores descriptions of observations and predictions.

A judge implements `score` of `vagen.judge.base.Judge`; `make_judge` chooses one by `judge.type`.
"""

from collections.abc import Mapping

from vagen.config.judge_options import JudgeConfig
from vagen.judge.base import Judge
from vagen.judge.cache import AnswerCache
from vagen.judge.cascade import CascadeJudge
from vagen.judge.llm import ChatClient, LLMJudge
from vagen.judge.rule_judge import RuleJudge, Rules, rules_for

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
    rules: Mapping[str, Rules],
    prompts: Mapping[str, str] | None = None,
    client: ChatClient | None = None,
    cache: AnswerCache | None = None,
) -> Judge:
    """Creates the judge of a configuration.

    Args:
        config: The experiment's `judge` section.
        rules: Rules by environment name, for the environments' options.
        prompts: System prompt by environment name, to reject text copied from it.
        client: Client of the language model; not needed for rules only.
        cache: Cache of answers; None disables it.

    Raises:
        ValueError: The judge needs a language model, and there is no client.
    """
    rule_judge = RuleJudge(rules, prompts=prompts, gate=config.gate)
    if config.type == "rule":
        return rule_judge
    if client is None:
        raise ValueError(f"a judge of type {config.type} needs a client of its language model")
    llm_judge = LLMJudge(client, rules=rules, prompts=prompts, cache=cache)
    return llm_judge if config.type == "llm" else CascadeJudge(rule_judge, llm_judge, rules)
