"""`vagen env check`: whether an environment keeps the contract."""

from argparse import Namespace
from pathlib import Path

from vagen.config.layers import Layers, parse_override
from vagen.config.yaml_io import read_yaml
from vagen.envs import ContractError, check_env, make


def env(options: Namespace) -> None:
    """Plays an environment and prints which parts of the contract it keeps.

    Raises:
        ConfigError: An option is not `key=value`, or a file is no YAML.
        ContractError: The environment breaks the contract, or cannot be made.
    """
    layers = Layers({})
    for text in options.config:
        layers.lay(parse_override(text) if "=" in text else read_yaml(Path(text)))
    try:
        made = make(options.name, layers.tree)
    except ValueError:
        raise
    except Exception as error:  # whatever a class of one's own raises
        reason = f"{type(error).__name__}: {error}"
        raise ContractError(f"{options.name} cannot be made: {reason}") from error
    try:
        check_env(made, report=lambda sentence: print(f"✓ {sentence}", flush=True))
    finally:
        made.close()
    print(f"{options.name} keeps the contract of vagen.envs.AgentEnv")
