"""Sessions: one environment each, owned by a client, closed when idle."""

import asyncio
import base64
import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
import prometheus_client as prometheus
from pydantic import ValidationError

from vagen.envs import UnknownEnvironmentError, parse_env_config
from vagen.envs.registry import ENVIRONMENTS, get_environment
from vagen.service.base import EnvironmentLost, EnvironmentRaised, Handle
from vagen.service.messages import ErrorKind, ResetOrder, SessionOrder, SessionState, StepOrder
from vagen.service.pool import WorkerPools, core_count
from vagen.service.settings import ServiceSettings
from vagen.service.wire import WireReply, replace_surrogates
from vagen.service.worker import Host

ReplyContent = dict[str, Any]
_ERRORS = (EnvironmentRaised, EnvironmentLost)
"""What a call to an environment may raise."""
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)


class ServiceMetrics:
    """Prometheus metrics of one service, in a separate registry."""

    def __init__(self) -> None:
        registry = self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=registry)

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> prometheus.Gauge:
            return prometheus.Gauge(f"vagen_env_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> prometheus.Counter:
            return prometheus.Counter(f"vagen_env_{name}", text, labels, registry=registry)

        self.sessions = gauge("sessions", "Open sessions.", ("env_name",))
        self.pending = gauge("pending_calls", "Calls that wait for environments.")
        self.calls = counter("calls", "Calls answered.", ("env_name", "operation"))
        self.errors = counter("errors", "Calls that failed.", ("env_name", "kind"))
        self.requests = prometheus.Histogram(
            "vagen_env_request_seconds",
            "Time to answer a request.",
            ["operation"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.refused = counter("refused_requests", "Requests turned away.", ("reason",))
        self.image_bytes = counter("image_bytes", "PNG bytes sent.")
        self.expired = counter("expired_sessions", "Sessions closed unused.")
        self.worker_deaths = counter("worker_deaths", "Worker processes that died.")

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return prometheus.generate_latest(self.registry)


class NotServed(ValueError):
    """An option that clients may not set."""


class InlineEnv:
    """An environment in the serving process; implements `Handle`."""

    system_prompt = ""

    def __init__(self, host: Host, number: int):
        self._host = host
        self._number = number

    async def ask(self, op: str, **fields: Any) -> WireReply:
        """See `Handle`."""
        content, frames = self._host.answer_json({"op": op, "env": self._number, **fields})
        reply = WireReply(orjson.loads(content), frames)
        if "error" in reply.content:
            raise EnvironmentRaised(reply.content["error"])
        return reply

    async def close(self) -> None:
        """See `Handle`."""
        self._host.answer({"op": "close", "env": self._number})


class Backend:
    """Creates the service's environments, with frames as PNG."""

    def __init__(self, settings: ServiceSettings, on_replace: Callable[[], None]):
        """Prepares the backend; `start` spawns the workers.

        Args:
            settings: Settings of the service.
            on_replace: Called for every dead worker process.
        """
        self._settings = settings
        self._host = Host()
        self._numbers = itertools.count()
        self._inline = settings.workers == 0
        self._pools = WorkerPools(
            1 if self._inline else settings.workers or core_count(),
            answer_seconds=settings.answer_seconds,
            call_seconds=settings.answer_seconds / 2,
            memory_mib=settings.worker_memory_mib,
            on_replace=on_replace,
        )

    async def start(self) -> None:
        """Spawns workers and warms up environments before the first session.

        Raises:
            EnvironmentRaised: An environment of `warm_up` cannot be created.
            EnvironmentLost: Workers die while creating it.
        """
        if not self._inline:
            await self._pools.start()
        for env_name in self._settings.warm_up:
            env = await self.open(env_name, {}, "train")
            await env.close()

    @property
    def ready(self) -> bool:
        """Whether there is a process for new environments."""
        return self._inline or self._pools.ready

    async def open(self, env_name: str, env_config: dict[str, Any], split: str) -> Handle:
        """Creates an environment.

        Raises:
            pydantic.ValidationError: An option is invalid.
            NotServed: An option is reserved for local users.
            EnvironmentRaised: It cannot be created.
            EnvironmentLost: Its process died while creating it.
        """
        config = parse_env_config(env_name, env_config)
        for option, reason in config.not_served():
            raise NotServed(f"{option}: {reason}")
        options = config.model_dump(mode="json")
        if not self._inline or get_environment(env_name).load().needs_process:
            return await self._pools.open(env_name, options, split, encoding="png")
        env = InlineEnv(self._host, next(self._numbers))
        order = {"env_name": env_name, "env_config": options, "split": split, "encoding": "png"}
        env.system_prompt = (await env.ask("create", **order)).content["system_prompt"]
        return env

    async def close(self) -> None:
        """Ends the workers."""
        await self._pools.close()


@dataclass(eq=False, slots=True)
class _Session:
    client: str
    env_name: str
    opening: "asyncio.Task[Handle]"
    sequence: int = 0
    operation: str = ""
    last: "asyncio.Task[ReplyContent] | None" = None
    """The reply to the last reset or step."""
    used: float = field(default_factory=time.monotonic)


class Failed(Exception):
    """A session's failure; part of the response."""

    def __init__(self, kind: ErrorKind, message: str):
        super().__init__(message)
        self.kind: ErrorKind = kind


class Sessions:
    """All sessions of the service."""

    def __init__(self, settings: ServiceSettings, backend: Backend, metrics: ServiceMetrics):
        self._settings = settings
        self._backend = backend
        self._metrics = metrics
        # Adapters import code that a client names, so they are served only if configured.
        self.served = settings.environments or tuple(ENVIRONMENTS)
        self._sessions: dict[str, _Session] = {}
        self._per_client: Counter[str] = Counter()
        self.pending = 0
        """Number of calls that wait for environments."""

    def __len__(self) -> int:
        """Number of open sessions."""
        return len(self._sessions)

    async def create(self, client: str, order: SessionOrder) -> ReplyContent:
        """Opens a session if it is not open.

        Raises:
            Failed: It cannot be opened.
        """
        if order.env_name not in self.served:
            names = ", ".join(self.served)
            raise Failed("invalid", f"{order.env_name!r} is not served here: {names} are")
        session = self._sessions.get(order.session)
        if session is not None and session.client != client:
            raise Failed("conflict", "the key is taken: choose another one at random")
        if session is None:
            settings = self._settings
            if (
                len(self) >= settings.max_sessions
                or self._per_client[client] >= settings.max_sessions_per_client
            ):
                raise Failed("full", "no session is free: close one, or try again later")
            opening = asyncio.ensure_future(
                self._backend.open(order.env_name, order.env_config, order.split)
            )
            session = _Session(client, order.env_name, opening)
            self._sessions[order.session] = session
            self._per_client[client] += 1
            self._metrics.sessions.labels(order.env_name).inc()
        try:
            handle = await asyncio.shield(session.opening)
        except (ValidationError, UnknownEnvironmentError, NotServed, *_ERRORS) as error:
            self._forget(order.session)
            kind, text = _failure_of(error)
            raise Failed(kind, text) from None
        session.used = time.monotonic()
        return {"session": order.session, "system_prompt": handle.system_prompt}

    async def reset(self, client: str, order: ResetOrder) -> ReplyContent:
        """Resets a session; see `step`."""
        return await self._advance(client, order, "reset", seed=order.seed, options=order.options)

    async def step(self, client: str, order: StepOrder) -> ReplyContent:
        """Steps a session, or repeats the reply to its last call.

        Raises:
            Failed: There is no such session, or `sequence` is neither the last number nor the next.
        """
        return await self._advance(client, order, "step", response=order.response)

    async def _advance(
        self, client: str, order: ResetOrder | StepOrder, operation: str, **fields: Any
    ) -> ReplyContent:
        key, sequence = order.session, order.sequence
        session = self._find(client, key)
        if sequence == session.sequence + 1:
            session.sequence, session.operation = sequence, operation
            session.last = asyncio.ensure_future(self._call(key, session, operation, fields))
        elif sequence != session.sequence or operation != session.operation:
            raise Failed(
                "conflict",
                f"the session's last call is {session.sequence or 'none'}"
                f"{f' ({session.operation})' if session.operation else ''}: only it may be "
                f"repeated, and the next is {session.sequence + 1}",
            )
        assert session.last is not None
        return await asyncio.shield(session.last)

    async def expert(self, client: str, key: str) -> ReplyContent:
        """The expert's response; raises `Failed` if there is no such session."""
        return await self._call(key, self._find(client, key), "expert", {})

    async def summary(self, client: str, key: str) -> ReplyContent:
        """The expert's summary; raises `Failed` if there is no such session."""
        return await self._call(key, self._find(client, key), "summary", {})

    async def close(self, client: str, key: str) -> ReplyContent:
        """Closes a session; ignores closed ones."""
        session = self._sessions.get(key)
        if session is not None and session.client == client:
            await self._close(key)
        return {"session": key}

    def of(self, client: str) -> list[SessionState]:
        """A client's sessions."""
        now = time.monotonic()
        return [
            SessionState(
                session=key,
                env_name=session.env_name,
                sequence=session.sequence,
                idle_seconds=round(now - session.used, 3),
            )
            for key, session in self._sessions.items()
            if session.client == client
        ]

    async def sweep(self) -> None:
        """Closes sessions that have been idle for too long."""
        oldest = time.monotonic() - self._settings.idle_seconds
        for key, session in list(self._sessions.items()):
            busy = session.last is not None and not session.last.done()
            if session.used < oldest and session.opening.done() and not busy:
                self._metrics.expired.inc()
                await self._close(key)

    async def close_all(self) -> None:
        """Closes every session."""
        for key in list(self._sessions):
            await self._close(key)

    def _find(self, client: str, key: str) -> _Session:
        session = self._sessions.get(key)
        if session is None or session.client != client or not session.opening.done():
            raise Failed("unknown", "no such session: it was closed, expired or never opened")
        session.used = time.monotonic()
        return session

    async def _call(
        self, key: str, session: _Session, operation: str, fields: dict[str, Any]
    ) -> ReplyContent:
        self.pending += 1
        try:
            reply = await session.opening.result().ask(operation, **fields)
        except _ERRORS as error:
            if isinstance(error, EnvironmentLost):
                self._forget(key)
            kind, text = _failure_of(error)
            self._metrics.errors.labels(session.env_name, kind).inc()
            return failure(key, kind, text)
        finally:
            self.pending -= 1
            session.used = time.monotonic()
        self._metrics.calls.labels(session.env_name, operation).inc()
        return {"session": key, **self._shown(reply)}

    def _shown(self, reply: WireReply) -> ReplyContent:
        """The reply with its frames in base64."""
        content = dict(reply.content)
        if "observation" in content:
            images = [base64.b64encode(frame).decode("ascii") for frame in reply.frames]
            content["observation"] = {"text": content["observation"]["text"], "images": images}
            self._metrics.image_bytes.inc(sum(len(frame) for frame in reply.frames))
        return content

    def _forget(self, key: str) -> _Session | None:
        session = self._sessions.pop(key, None)
        if session is not None:
            self._metrics.sessions.labels(session.env_name).dec()
            self._per_client[session.client] -= 1
        return session

    async def _close(self, key: str) -> None:
        session = self._forget(key)
        if session is None:
            return
        try:
            handle = await session.opening
        except (ValueError, *_ERRORS):
            return  # it was never open
        await handle.close()


def failure(key: str, kind: ErrorKind, message: str) -> ReplyContent:
    """The reply of a session that failed."""
    return {"session": key, "error": {"kind": kind, "message": replace_surrogates(message)}}


def _failure_of(error: Exception) -> tuple[ErrorKind, str]:
    """The kind of an error, and what it says, on one line."""
    if isinstance(error, EnvironmentRaised):
        return "environment", str(error)
    if isinstance(error, EnvironmentLost):
        return "lost", str(error)
    if not isinstance(error, ValidationError):
        return "invalid", str(error)
    return "invalid", "; ".join(
        f"{'.'.join(map(str, part['loc'])) or 'env_config'}: {part['msg']}"
        for part in error.errors(include_input=False, include_url=False)
    )
