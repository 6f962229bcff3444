"""Measures the quality of a judge on generated statements with known truth."""

from vagen.envs.registry import get_environment
from vagen.judge.calibration.claims import claim_writer
from vagen.judge.calibration.writer import Scene, Text, TextKind, Writer

__all__ = ["Scene", "Text", "TextKind", "Writer", "writer_of"]


def writer_of(env_name: str) -> type[Writer] | None:
    """The writer of statements about an environment; None if it declares no claims."""
    env = get_environment(env_name).load()
    return claim_writer(env_name, env) if env.claims else None
