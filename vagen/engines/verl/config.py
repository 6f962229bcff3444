"""verl's configuration of a run: verl's defaults with our settings on top."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from functools import cache
from importlib.resources import files
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf, open_dict

from vagen.config import ConfigError, ExperimentConfig, InfraConfig
from vagen.config.errors import unknown_name
from vagen.config.infra import dotted
from vagen.engines.verl.mapping import EXTRA, VLLM, Setting, is_cpu, settings

OPEN = ("ray_kwargs.ray_init", VLLM)
"""Sections whose options verl passes on without checking."""


def verl_config(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    model_path: str,
    *,
    cpu: bool | None = None,
    environment: Mapping[str, str] | None = None,
    frame_pixels: int | None = None,
) -> DictConfig:
    """The configuration of verl's workers and servers.

    Args:
        experiment: The experiment with resolved environments.
        infra: Its infrastructure.
        model_path: Directory or hub id that actor, critic, reference and servers load.
        cpu: Whether it runs without GPUs; None detects it.
        environment: Environment variables for all processes of a Ray started here.
        frame_pixels: Pixels of the largest frame as the model reads it; None: not known.

    Raises:
        ConfigError: verl cannot run this combination.
    """
    cpu = is_cpu(infra) if cpu is None else cpu
    config = verl_defaults()
    laid = settings(
        experiment, infra, model_path, cpu=cpu, environment=environment, frame_pixels=frame_pixels
    )
    lay(config, [setting for setting in laid if setting.source != EXTRA])
    pass_through(config, infra.verl.extra)
    return config


def verl_defaults() -> DictConfig:
    """verl's default `ppo_trainer`, with interpolations unresolved; a fresh copy."""
    return deepcopy(_shipped())


@cache
def _shipped() -> DictConfig:
    with initialize_config_dir(str(files("verl.trainer.config")), version_base=None):
        return compose("ppo_trainer")


def lay(config: DictConfig, values: Sequence[Setting]) -> None:
    """Writes settings into a configuration.

    Raises:
        ConfigError: verl lacks such an option, or has one that is marked as new: this code was
            written for another version of verl.
    """
    for setting in values:
        parent, _, name = setting.key.rpartition(".")
        section = OmegaConf.select(config, parent)
        # `in` is False for a mandatory value (`???`) of a DictConfig, but its list of keys has it.
        known = section is not None and name in list(section)
        if section is None or known is setting.new:
            state = "an option of its own" if known else "no option"
            raise ConfigError(
                f"this version of verl has {state} `{setting.key}`: install the one that "
                "constraints/ names"
            )
        with open_dict(section):
            section[name] = setting.value


def pass_through(config: DictConfig, extra: Mapping[str, Any]) -> None:
    """Applies `infra.verl.extra` to a configuration.

    Raises:
        ConfigError: verl has no such option; the message gives the nearest name.
    """
    for key, value in extra.items():
        if not _is_known(config, key):
            names = dotted(OmegaConf.to_container(config, resolve=False))
            raise ConfigError(f"`{EXTRA}`: {unknown_name('option of verl', key, names)}")
        OmegaConf.update(config, key, value, force_add=True)


def _is_known(config: DictConfig, key: str) -> bool:
    """Whether verl's defaults, or the section's dataclass, have an option of that name.

    A section that is empty in the defaults, such as `engine_kwargs.vllm`, accepts any.
    """
    parts = key.split(".")
    section: Any = config
    for place, name in enumerate(parts):
        if not isinstance(section, DictConfig):
            return False
        if not section or ".".join(parts[:place]) in OPEN:
            return True
        if name not in list(section):
            target = section.get("_target_")
            declared = {field.name for field in fields(get_class(target))} if target else set()
            return name in declared and place + 1 == len(parts)
        section = section._get_node(name)
    return True
