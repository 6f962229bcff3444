"""verl's configuration of a run: its own defaults with our values laid on them."""

from collections.abc import Mapping, Sequence
from importlib.resources import files

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf, open_dict

from vagen.config import ConfigError, ExperimentConfig, InfraConfig
from vagen.engines.verl.mapping import Setting, is_cpu, settings


def verl_config(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    model_path: str,
    *,
    cpu: bool | None = None,
    environment: Mapping[str, str] | None = None,
) -> DictConfig:
    """The configuration that verl's workers and servers take.

    Args:
        experiment: With resolved environments.
        infra: Where it runs.
        model_path: Directory or hub id that actor, critic, reference and servers load.
        cpu: Whether it runs without GPUs; None looks.
        environment: Variables that every process of a Ray started here needs.

    Raises:
        ConfigError: For combinations that verl cannot run.
    """
    cpu = is_cpu(infra) if cpu is None else cpu
    config = verl_defaults()
    lay(config, settings(experiment, infra, model_path, cpu=cpu, environment=environment))
    return config


def verl_defaults() -> DictConfig:
    """Verl's `ppo_trainer` as it is shipped, interpolations unresolved."""
    folder = str(files("verl.trainer.config"))
    with initialize_config_dir(folder, version_base=None):
        return compose("ppo_trainer")


def lay(config: DictConfig, values: Sequence[Setting]) -> None:
    """Writes settings into a configuration.

    Raises:
        ConfigError: If verl has no such option, or has one that is thought to be new: it is another
            version than the one that this was written for.
    """
    for setting in values:
        parent, _, name = setting.key.rpartition(".")
        section = OmegaConf.select(config, parent)
        # A DictConfig does not count a mandatory value (`???`) as contained; its list of keys does.
        known = section is not None and name in list(section)
        if section is None or known is setting.new:
            state = "an option of its own" if known else "no option"
            raise ConfigError(
                f"this version of verl has {state} `{setting.key}`: install the one that "
                "constraints/ names"
            )
        with open_dict(section):
            section[name] = setting.value
