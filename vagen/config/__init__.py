"""Configuration: schema, presets, loading, checks.

`load_experiment("frozenlake-tiny", ["algorithm.lam=0.95"])` gives a checked `ExperimentConfig`.
"""

from vagen.config.base import ConfigError, Section
from vagen.config.infra import InfraConfig
from vagen.config.load import config_digest, load_experiment, load_infra
from vagen.config.presets import PRESETS
from vagen.config.schema import ExperimentConfig
from vagen.config.yaml_io import dump_yaml

__all__ = [
    "PRESETS",
    "ConfigError",
    "ExperimentConfig",
    "InfraConfig",
    "Section",
    "config_digest",
    "dump_yaml",
    "load_experiment",
    "load_infra",
]
