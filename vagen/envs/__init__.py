"""Environments with text and images. Importing this package registers them with Gymnasium."""

from vagen.envs.base import IMAGE_PLACEHOLDER, AgentEnv, Observation, State
from vagen.envs.check import ContractError, check_env
from vagen.envs.levels import SPLITS, LevelError, split_of
from vagen.envs.parsing import LAYOUTS, ParsedResponse, Tags
from vagen.envs.registry import (
    ENVIRONMENTS,
    LevelRef,
    UnknownEnvironmentError,
    distinct_levels,
    env_config_digest,
    get_environment,
    make,
    parse_env_config,
    register,
)

__all__ = [
    "ENVIRONMENTS",
    "IMAGE_PLACEHOLDER",
    "LAYOUTS",
    "SPLITS",
    "AgentEnv",
    "ContractError",
    "LevelError",
    "LevelRef",
    "Observation",
    "ParsedResponse",
    "State",
    "Tags",
    "UnknownEnvironmentError",
    "check_env",
    "distinct_levels",
    "env_config_digest",
    "get_environment",
    "make",
    "parse_env_config",
    "register",
    "split_of",
]

register()
