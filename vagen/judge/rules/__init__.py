"""Rules by environment, for rule judges, cascades and calibrations."""

from typing import Any

from vagen.envs.config import EnvConfig
from vagen.envs.registry import get_environment
from vagen.judge.rules.base import Reading, Rules
from vagen.judge.rules.claims import ClaimRules

__all__ = ["Reading", "Rules", "rules_for"]


def rules_for(env_name: str, env_config: EnvConfig | None = None) -> Rules[Any, Any] | None:
    """The rules of an environment with its options; None if it declares no claims.

    Args:
        env_name: Name of the environment.
        env_config: Its options; None for the defaults.
    """
    env = get_environment(env_name).load()
    return ClaimRules(env, env_config) if env.claims else None
