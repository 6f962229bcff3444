"""Environments apart from whoever plays: in this process, in worker processes, or behind HTTP."""

from vagen.service.base import AsyncEnv, EnvironmentLost, EnvironmentRaised, LocalEnv
from vagen.service.placement import Environments, environments_of

__all__ = [
    "AsyncEnv",
    "EnvironmentLost",
    "EnvironmentRaised",
    "Environments",
    "LocalEnv",
    "environments_of",
]
