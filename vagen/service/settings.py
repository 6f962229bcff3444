"""Options of HTTP servers, from flags and environment variables."""

import argparse
import ipaddress
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from vagen.config.base import Section

PREFIX = "VAGEN_SERVICE_"


def _names(value: object) -> object:
    return tuple(filter(None, value.split(","))) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]


class ServerSettings(Section):
    """Where a server listens, whom it serves, and the most that it takes in."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port to listen on; 0 takes a free one."""
    tokens_file: str | None = None
    """File with a line `client:token` each; reloaded when it changes."""
    open: bool = False
    """Serve everyone without tokens, also on addresses other than loopback."""
    max_body_bytes: PositiveInt = 8 << 20
    """Maximum size of a request."""
    body_seconds: PositiveFloat = 20.0
    """Time limit for receiving a request."""
    max_buffered_bytes: PositiveInt = 64 << 20
    """Maximum bytes of incomplete requests, over all clients."""
    max_connections: PositiveInt = 1024
    """Maximum number of connections."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class ServiceSettings(ServerSettings):
    """Options of `python -m vagen.service`."""

    workers: NonNegativeInt | None = None
    """Number of worker processes; 0: the serving process runs environments, except for simulators
    that need a separate one; default: one per core."""
    environments: Names = ()
    """Served environments, comma-separated; default: all that run no code chosen by a client."""
    warm_up: Names = ()
    """Environments whose simulators are loaded before the service is ready."""
    max_sessions: PositiveInt = 2048
    """Maximum number of sessions."""
    max_sessions_per_client: PositiveInt = 1024
    """Maximum number of sessions per client."""
    max_batch: PositiveInt = 256
    """Maximum number of sessions per request."""
    max_pending: PositiveInt = 4096
    """Maximum number of waiting calls; further requests are rejected."""
    idle_seconds: PositiveFloat = 1800.0
    """Idle time after which a session is closed."""
    answer_seconds: PositiveFloat = 120.0
    """Time after which a worker process with an unanswered call is replaced; a call fails alone
    after half of it."""
    worker_memory_mib: PositiveInt = 2048
    """Memory limit of a worker process in MiB; calls that need more fail alone."""
    drain_seconds: PositiveFloat = 110.0
    """Time after SIGTERM during which open sessions are still served."""


def read_settings(
    arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ
) -> ServiceSettings:
    """Settings from flags, then `VAGEN_SERVICE_<NAME>`, then defaults.

    Raises:
        pydantic.ValidationError: A value is invalid.
        SystemExit: A flag is unknown.
    """
    parser = argparse.ArgumentParser(
        prog="python -m vagen.service",
        description=f"Serves environments over HTTP. Each option may be given as {PREFIX}<NAME>.",
    )
    for name, field in ServiceSettings.model_fields.items():
        text = " ".join((field.description or "").split()).replace("%", "%%")
        flag = f"--{name.replace('_', '-')}"
        if field.annotation is bool:
            parser.add_argument(flag, action="store_true", default=None, help=text)
        else:
            parser.add_argument(flag, help=f"{text} (default: {_shown(field.default)})")
    given: dict[str, Any] = {
        name: environment[PREFIX + name.upper()]
        for name in ServiceSettings.model_fields
        if environment.get(PREFIX + name.upper())
    }
    flags = {k: v for k, v in vars(parser.parse_args(arguments)).items() if v is not None}
    return ServiceSettings.model_validate(given | flags)


def _shown(value: object) -> str:
    return "see text" if value is None or value == () else str(value)
