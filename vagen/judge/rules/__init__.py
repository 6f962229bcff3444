"""Rules by environment: what a rule judge, a cascade and a calibration know of its states."""

from typing import Any

from vagen.envs.config import EnvConfig
from vagen.judge.rules.base import Reading, Rules
from vagen.judge.rules.blackjack import BlackjackRules
from vagen.judge.rules.frozenlake import FrozenLakeRules
from vagen.judge.rules.household import HouseholdRules
from vagen.judge.rules.navigation import NavigationRules
from vagen.judge.rules.primitive_skill import PrimitiveSkillRules
from vagen.judge.rules.sokoban import SokobanRules

__all__ = ["RULES", "Reading", "Rules", "default_rules", "rules_for"]

RULES: dict[str, type[Rules[Any, Any]]] = {
    rules.env_name: rules
    for rules in (
        BlackjackRules,
        FrozenLakeRules,
        HouseholdRules,
        NavigationRules,
        PrimitiveSkillRules,
        SokobanRules,
    )
}
"""By environment name; an environment that is not here is not judged by rules."""


def default_rules() -> dict[str, Rules[Any, Any]]:
    """The rules of every environment that has some, with its default options."""
    return {name: kind() for name, kind in RULES.items()}


def rules_for(
    env_name: str, env_config: EnvConfig | None = None, *, coordinate_base: int = 0
) -> Rules[Any, Any] | None:
    """The rules of an environment as configured; None if it has none.

    Args:
        env_name: Name of the environment.
        env_config: Its options; None stands for the defaults.
        coordinate_base: What rows and columns in texts count from, 0 or 1.
    """
    rules = RULES.get(env_name)
    if rules is None:
        return None
    configured = rules.from_config(env_config)
    return configured.counting_from(coordinate_base) if coordinate_base else configured
