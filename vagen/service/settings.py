"""Options of the environment service: flags, and environment variables beside them."""

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


class ServiceSettings(Section):
    """Options of `python -m vagen.service`."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port to listen on; 0 takes a free one."""
    workers: NonNegativeInt | None = None
    """Processes that environments live in; 0: the serving process, but for simulators that need
    one of their own; default: one per core."""
    environments: Names = ()
    """Names served, comma-separated; default: all that need no code of a client's choice."""
    warm_up: Names = ()
    """Environments whose simulators are loaded before the service is ready."""
    tokens_file: str | None = None
    """File with a line `client:token` each; read again when it changes."""
    open: bool = False
    """Serve anyone who reaches the port, without tokens, also on addresses other than loopback."""
    max_sessions: PositiveInt = 2048
    """Most sessions in all."""
    max_sessions_per_client: PositiveInt = 1024
    """Most sessions of one client."""
    max_batch: PositiveInt = 256
    """Most sessions in one request."""
    max_body_bytes: PositiveInt = 8 << 20
    """Largest request."""
    max_pending: PositiveInt = 4096
    """Calls that may wait for environments; a request that would exceed it is turned away."""
    idle_seconds: PositiveFloat = 1800.0
    """A session that is not used for so long is closed."""
    answer_seconds: PositiveFloat = 120.0
    """A worker process that leaves a call unanswered for so long is replaced; a call that takes
    half of it fails alone."""
    worker_memory_mib: PositiveInt = 2048
    """Memory that a worker process may take, MiB; what needs more fails alone."""
    body_seconds: PositiveFloat = 20.0
    """A request that has not arrived whole after so long is given up."""
    max_buffered_bytes: PositiveInt = 64 << 20
    """Most bytes of requests that are still arriving, of all clients."""
    max_connections: PositiveInt = 1024
    """Most connections."""
    drain_seconds: PositiveFloat = 110.0
    """After SIGTERM: how long sessions that are open are still served."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def read_settings(
    arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ
) -> ServiceSettings:
    """Settings from flags, else from `VAGEN_SERVICE_<NAME>`, else the defaults.

    Raises:
        pydantic.ValidationError: A value is impossible.
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
