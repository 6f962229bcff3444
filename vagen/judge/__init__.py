"""World-model reasoning reward: how well the agent says what it sees and predicts.

A judge is anything with the `score` of `vagen.judge.base.Judge`; `make_judge` picks one by
`judge.type`.
"""

from collections.abc import Mapping

from vagen.config.judge import JudgeConfig
from vagen.judge.base import Judge, Verdict
from vagen.judge.rules import REQUIRED_OBJECTS, RuleJudge

__all__ = ["REQUIRED_OBJECTS", "Judge", "RuleJudge", "Verdict", "make_judge"]


def make_judge(
    config: JudgeConfig, *, require_holes: bool = False, prompts: Mapping[str, str] | None = None
) -> Judge:
    """The judge that `config` asks for.

    Args:
        config: `judge` section of the experiment.
        require_holes: FrozenLake descriptions must place every hole for a full score.
        prompts: System prompt by environment name, so that text copied from it is refused.
    """
    match config.type:
        case "rule":
            return RuleJudge(require_holes=require_holes, prompts=prompts)
