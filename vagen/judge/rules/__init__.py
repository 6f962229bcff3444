"""Rules by environment: what a rule judge, a cascade and a calibration know of its states."""

from typing import Any

from vagen.envs.config import EnvConfig
from vagen.judge.rules.base import Reading, Rules
from vagen.judge.rules.frozenlake import FrozenLakeRules
from vagen.judge.rules.navigation import NavigationRules
from vagen.judge.rules.primitive_skill import PrimitiveSkillRules
from vagen.judge.rules.sokoban import SokobanRules

__all__ = ["RULES", "Reading", "Rules", "rules_for"]

RULES: dict[str, type[Rules[Any, Any]]] = {
    rules.env_name: rules
    for rules in (FrozenLakeRules, NavigationRules, PrimitiveSkillRules, SokobanRules)
}
"""By environment name; an environment that is not here is not judged by rules."""


def rules_for(env_name: str, env_config: EnvConfig | None = None) -> Rules[Any, Any] | None:
    """The rules of an environment as configured; None if it has none."""
    rules = RULES.get(env_name)
    return None if rules is None else rules.from_config(env_config)
