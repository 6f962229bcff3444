"""Runs environments in this process, in worker processes, or behind HTTP."""

from vagen.service.base import EnvironmentLost, EnvironmentRaised, HereEnv, LocalEnv
from vagen.service.placement import Environments, environments_of
from vagen.service.remote import AsyncEnv, SyncEnv

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
