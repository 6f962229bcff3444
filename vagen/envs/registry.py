"""Environments by name: creation, options, Gymnasium registration."""

import difflib
import hashlib
import importlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium

from vagen.envs.config import EnvConfig

if TYPE_CHECKING:
    from vagen.envs.base import AgentEnv


class UnknownEnvironmentError(ValueError):
    """A name that no environment has."""


@dataclass(frozen=True, slots=True)
class EnvironmentEntry:
    """A registered environment, loaded when it is first used."""

    name: str
    entry_point: str
    """`module:class`."""

    def load(self) -> "type[AgentEnv]":
        """Its class."""
        module, _, attribute = self.entry_point.partition(":")
        return getattr(importlib.import_module(module), attribute)

    @property
    def config_class(self) -> type[EnvConfig]:
        """The class of its options."""
        return self.load().config_class


ENVIRONMENTS: dict[str, EnvironmentEntry] = {
    name: EnvironmentEntry(name, f"vagen.envs.{package}.env:{name}Env")
    for name, package in {
        "FrozenLake": "frozenlake",
        "Sokoban": "sokoban",
        "Navigation": "navigation",
        "PrimitiveSkill": "primitive_skill",
        "SVG": "svg",
        "Blackjack": "blackjack",
        "Household": "household",
    }.items()
}


def get_environment(env_name: str) -> EnvironmentEntry:
    """The entry of a name.

    Raises:
        UnknownEnvironmentError: with the nearest known name.
    """
    if env_name in ENVIRONMENTS:
        return ENVIRONMENTS[env_name]
    lowered = {name.lower(): name for name in ENVIRONMENTS}
    near = difflib.get_close_matches(env_name.lower(), lowered, n=1)
    hint = f"did you mean {lowered[near[0]]!r}? " if near else ""
    raise UnknownEnvironmentError(
        f"no environment is named {env_name!r}: {hint}known are {', '.join(ENVIRONMENTS)}"
    )


def parse_env_config(env_name: str, env_config: dict[str, Any] | EnvConfig | None) -> Any:
    """Options of an environment as its config class, defaults filled in.

    Raises:
        pydantic.ValidationError: for an unknown key or an impossible value.
    """
    config_class = get_environment(env_name).config_class
    if isinstance(env_config, config_class):
        return env_config
    return config_class.model_validate(env_config or {})


def make(
    env_name: str, env_config: dict[str, Any] | EnvConfig | None = None, split: str = "train"
) -> "AgentEnv":
    """Creates an environment.

    Args:
        env_name: a name of `ENVIRONMENTS`.
        env_config: its options.
        split: which levels `reset` draws from: `train`, `val` or `test`.

    Raises:
        UnknownEnvironmentError: if no environment has this name.
        pydantic.ValidationError: for an unknown option or an impossible value.
        LevelError: for an unknown split or an unusable level file.
    """
    return get_environment(env_name).load()(parse_env_config(env_name, env_config), split=split)


def env_config_digest(env_name: str, env_config: dict[str, Any] | EnvConfig | None) -> str:
    """SHA-256 of the environment's name and resolved options, hexadecimal."""
    resolved = parse_env_config(env_name, env_config).model_dump(mode="json")
    content = json.dumps({"env_name": env_name, "env_config": resolved}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def register() -> None:
    """Registers every environment with Gymnasium as `vagen/<name>-v0`."""
    for entry in ENVIRONMENTS.values():
        gymnasium.register(id=f"vagen/{entry.name}-v0", entry_point=entry.entry_point)
