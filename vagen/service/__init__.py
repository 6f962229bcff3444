"""Runs environments in this process, in worker processes, or behind HTTP."""

from vagen.service.base import (
    AsyncEnv,
    EnvironmentLost,
    EnvironmentRaised,
    HereEnv,
    LocalEnv,
    SyncEnv,
)
from vagen.service.placement import Environments, environments_of

__all__ = [
    "AsyncEnv",
    "EnvironmentLost",
    "EnvironmentRaised",
    "Environments",
    "HereEnv",
    "LocalEnv",
    "SyncEnv",
    "environments_of",
]
