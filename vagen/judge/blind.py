"""Blind scores: the judge's score of the best constant text in an environment."""

from collections.abc import Sequence

from vagen.config.schema import ExperimentConfig
from vagen.judge.base import SECTIONS
from vagen.judge.rule_judge import RuleJudge
from vagen.judge.scoring import judge_of
from vagen.rollout.scripted import play_expert
from vagen.rollout.types import SectionScores
from vagen.service import Environments

LEVELS = 64
"""Number of levels whose states and texts are compared."""


def blind_scores(
    config: ExperimentConfig, config_id: str, seeds: Sequence[int], places: Environments
) -> SectionScores:
    """Scores of the best constant observation and prediction among the expert's texts.

    Rules compare each text with every state of the expert's episodes. Empty without an expert or
    without rules.

    Args:
        config: The experiment.
        config_id: The environment.
        seeds: Seeds of training levels; the first `LEVELS` are played.
        places: Where environments run.
    """
    spec = config.envs[config_id]
    rules_alone = config.judge.model_copy(update={"type": "rule"})
    judge = judge_of(rules_alone, spec.env_name, spec.env_config)
    if not isinstance(judge, RuleJudge) or (rules := judge.rules) is None:
        return SectionScores()
    env = places.open(spec.env_name, spec.env_config)
    try:
        played = play_expert(config, config_id, env, seeds[:LEVELS])
        turns = [turn for episode in played for turn in episode.turns]
    finally:
        env.close()
    found = {}
    for section in SECTIONS:
        states = [turn.state if section == "observation" else turn.next_state for turn in turns]
        truths = [rules.truth(state) for state in states]
        texts = {getattr(turn.parsed, section) for turn in turns} - {None}
        scores = [judge.scores(text, truths) for text in sorted(texts)]
        found[section] = max((float(each.mean()) for each in scores if each is not None), default=0)
    return SectionScores(**found)
