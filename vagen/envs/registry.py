"""Looks up environments by name, creates them and lists levels; registers with Gymnasium."""

import difflib
import hashlib
import importlib
import importlib.metadata
import json
from dataclasses import dataclass
from typing import Any

import gymnasium

from vagen.config.base import canonical_values
from vagen.envs.base import AgentEnv
from vagen.envs.config import EnvConfig
from vagen.envs.levels import LevelError, check_split


class UnknownEnvironmentError(ValueError):
    """There is no environment of this name."""


@dataclass(frozen=True, slots=True)
class EnvironmentEntry:
    """A registered environment, imported on first use."""

    name: str
    entry_point: str
    """`module:class`."""

    def load(self) -> type[AgentEnv]:
        """Imports its class.

        Raises:
            UnknownEnvironmentError: An environment outside this package cannot be imported.
        """
        module, _, attribute = self.entry_point.partition(":")
        if self.name in ENVIRONMENTS or self.name in ADAPTERS:
            return getattr(importlib.import_module(module), attribute)
        return _load_foreign(self.name, module, attribute)

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
        "Web": "web",
    }.items()
}
"""The environments of this package."""

ADAPTERS: dict[str, EnvironmentEntry] = {
    "Gymnasium": EnvironmentEntry("Gymnasium", "vagen.envs.adapters.gymnasium:GymnasiumEnv"),
    "GymImageEnv": EnvironmentEntry("GymImageEnv", "vagen.envs.adapters.gym_image:GymImageAdapter"),
    "OpenEnv": EnvironmentEntry("OpenEnv", "vagen.envs.adapters.openenv:OpenEnvAdapter"),
    "BrowserGym": EnvironmentEntry("BrowserGym", "vagen.envs.adapters.browsergym:BrowserGymEnv"),
}
"""Names for adapted environments, which the options specify."""

ENTRY_POINTS = "vagen.environments"
"""Entry point group for environments of installed packages."""


def get_environment(env_name: str) -> EnvironmentEntry:
    """The entry of a name: of `ENVIRONMENTS`, of `ADAPTERS`, `module:Class`, or an entry point.

    Raises:
        UnknownEnvironmentError: The message has the nearest known name.
    """
    known = {**ENVIRONMENTS, **ADAPTERS}
    if env_name in known:
        return known[env_name]
    if ":" in env_name:
        return EnvironmentEntry(env_name, env_name)
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS, name=env_name):
        return EnvironmentEntry(env_name, point.value)
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(env_name.lower(), lowered, n=1)
    hint = f"did you mean {lowered[near[0]]!r}? " if near else ""
    raise UnknownEnvironmentError(
        f"no environment is named {env_name!r}: {hint}known are {', '.join(known)}, and any "
        "module:Class of your own"
    )


def _load_foreign(name: str, module: str, attribute: str) -> type[AgentEnv]:
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UnknownEnvironmentError(
            f"the environment {name!r} cannot be loaded: {error}; it is written module:Class, and "
            "its module must be installed or on PYTHONPATH"
        ) from error
    if not (isinstance(found, type) and issubclass(found, AgentEnv)):
        raise UnknownEnvironmentError(
            f"the environment {name!r} is no class that derives from vagen.envs.AgentEnv; one "
            "written for GymImageEnv or Gymnasium runs by env_name: GymImageEnv or Gymnasium"
        )
    return found


def parse_env_config(env_name: str, env_config: dict[str, Any] | EnvConfig | None) -> Any:
    """Parses options into the environment's config class, with defaults.

    Raises:
        pydantic.ValidationError: A key is unknown or a value is invalid.
    """
    config_class = get_environment(env_name).config_class
    if isinstance(env_config, config_class):
        return env_config
    return config_class.model_validate(env_config or {})


def make(
    env_name: str, env_config: dict[str, Any] | EnvConfig | None = None, split: str = "train"
) -> AgentEnv:
    """Creates an environment.

    Args:
        env_name: A name for `get_environment`.
        env_config: Its options.
        split: Split of the levels: `train`, `val` or `test`.

    Raises:
        UnknownEnvironmentError: No environment has this name.
        pydantic.ValidationError: An option is unknown or a value is invalid.
        LevelError: The split is unknown or the level file is invalid.
    """
    return get_environment(env_name).load()(parse_env_config(env_name, env_config), split=split)


def env_config_digest(env_name: str, env_config: dict[str, Any] | EnvConfig | None) -> str:
    """SHA-256 of the environment's name and resolved options, hexadecimal."""
    resolved = canonical_values(parse_env_config(env_name, env_config))
    content = json.dumps({"env_name": env_name, "env_config": resolved}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class LevelRef:
    """A level by its seed."""

    seed: int
    level_hash: str
    difficulty: tuple[float, ...] = ()
    """The environment's `difficulty`, if requested."""


def distinct_levels(
    env_name: str,
    env_config: dict[str, Any],
    split: str,
    count: int,
    *,
    with_difficulty: bool = False,
) -> list[LevelRef]:
    """The first `count` seeds with distinct levels.

    The list for a smaller count is a prefix of the list for a larger one.

    Raises:
        LevelError: The split has fewer levels; the message says how many.
    """
    env_class = get_environment(env_name).load()
    config = parse_env_config(env_name, env_config)
    split = check_split(split)
    refs: list[LevelRef] = []
    seen: set[str] = set()
    misses = 0
    seed = 0
    while len(refs) < count:
        level = env_class.sample_level(config, seed, split)
        digest = level.level_hash
        misses += 1
        if digest not in seen:
            seen.add(digest)
            refs.append(
                LevelRef(seed, digest, env_class.difficulty(level) if with_difficulty else ())
            )
            misses = 0
        elif misses > 1_000 + 5 * len(refs):
            raise LevelError(
                f"{env_name} {split}: {count} distinct levels wanted, but only {len(refs)} were "
                f"found in {seed + 1} seeds; ask for fewer, or allow more levels by its options "
                f"(size, distance or length bounds, number of boxes, level file)"
            )
        seed += 1
    return refs


def register() -> None:
    """Registers every environment with Gymnasium as `vagen/<name>-v0`."""
    for entry in ENVIRONMENTS.values():
        gymnasium.register(id=f"vagen/{entry.name}-v0", entry_point=entry.entry_point)
