"""Configuration: schema and presets, without anything else of vagen.

`vagen.experiment.load.load_experiment("frozenlake-tiny", ["algorithm.lam=0.95"])` gives a checked
`ExperimentConfig`.
"""

from vagen.config.base import ConfigError, Section, config_digest
from vagen.config.infra import InfraConfig
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
]
