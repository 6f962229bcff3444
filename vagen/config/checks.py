"""Combinations that cannot work, refused before anything runs, with the reason."""

from collections.abc import Callable

from vagen.config.errors import KeyPath
from vagen.config.schema import ExperimentConfig


def check_experiment(
    config: ExperimentConfig, place_of: Callable[[KeyPath], str | None] = lambda _: None
) -> None:
    """Refuses an experiment that cannot run.

    Raises:
        ConfigError: With one line per reason.
    """
