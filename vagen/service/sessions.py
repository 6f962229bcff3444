"""Sessions: one environment each, owned by a client, closed when idle."""

import asyncio
import base64
import time
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from vagen.envs import UnknownEnvironmentError
from vagen.service.backend import Backend, NotServed
from vagen.service.base import EnvironmentLost, EnvironmentRaised
from vagen.service.messages import ErrorKind, SessionOrder, SessionState
from vagen.service.metrics import ServiceMetrics
from vagen.service.remote import Handle
from vagen.service.settings import ServiceSettings
from vagen.service.wire import WireReply, replace_surrogates

ReplyContent = dict[str, Any]


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
        self._sessions: dict[str, _Session] = {}
        self._per_client: dict[str, int] = {}
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
        session = self._sessions.get(order.session)
        if session is not None and session.client != client:
            raise Failed("conflict", "the key is taken: choose another one at random")
        if session is None:
            if self._is_full(client):
                raise Failed("full", "no session is free: close one, or try again later")
            opening = asyncio.ensure_future(
                self._backend.open(order.env_name, order.env_config, order.split)
            )
            session = _Session(client, order.env_name, opening)
            self._sessions[order.session] = session
            self._per_client[client] = self._per_client.get(client, 0) + 1
            self._metrics.sessions.labels(order.env_name).inc()
        try:
            handle = await asyncio.shield(session.opening)
        except (ValidationError, UnknownEnvironmentError, NotServed) as error:
            self._forget(order.session)
            raise Failed("invalid", _mistakes(error)) from None
        except EnvironmentRaised as error:
            self._forget(order.session)
            raise Failed("environment", str(error)) from None
        except EnvironmentLost as error:
            self._forget(order.session)
            raise Failed("lost", str(error)) from None
        session.used = time.monotonic()
        return {"session": order.session, "system_prompt": handle.system_prompt}

    async def advance(
        self, client: str, key: str, sequence: int, operation: str, **fields: Any
    ) -> ReplyContent:
        """Resets or steps a session, or repeats the reply to its last call.

        Raises:
            Failed: There is no such session, or `sequence` is neither the last number nor the next.
        """
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

    async def expert(self, client: str, key: str, op: str = "expert") -> ReplyContent:
        """The expert's response or summary (`op="summary"`).

        Raises:
            Failed: There is no such session, or no expert.
        """
        return await self._call(key, self._find(client, key), op, {})

    async def close(self, client: str, key: str) -> None:
        """Closes a session; ignores closed ones."""
        session = self._sessions.get(key)
        if session is not None and session.client == client:
            await self._close(key)

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
        except EnvironmentRaised as error:
            return self._error(key, session, "environment", str(error))
        except EnvironmentLost as error:
            self._forget(key)
            return self._error(key, session, "lost", str(error))
        finally:
            self.pending -= 1
            session.used = time.monotonic()
        self._metrics.calls.labels(session.env_name, operation).inc()
        return {"session": key, **self._shown(reply)}

    def _error(self, key: str, session: _Session, kind: ErrorKind, message: str) -> ReplyContent:
        self._metrics.errors.labels(session.env_name, kind).inc()
        return failure(key, kind, message)

    def _shown(self, reply: WireReply) -> ReplyContent:
        """The reply with its frames in base64."""
        content = dict(reply.content)
        if "observation" in content:
            images = [base64.b64encode(frame).decode("ascii") for frame in reply.frames]
            content["observation"] = {"text": content["observation"]["text"], "images": images}
            self._metrics.image_bytes.inc(sum(len(frame) for frame in reply.frames))
        return content

    def _is_full(self, client: str) -> bool:
        return (
            len(self._sessions) >= self._settings.max_sessions
            or self._per_client.get(client, 0) >= self._settings.max_sessions_per_client
        )

    def _forget(self, key: str) -> _Session | None:
        session = self._sessions.pop(key, None)
        if session is not None:
            self._metrics.sessions.labels(session.env_name).dec()
            self._per_client[session.client] -= 1
            if not self._per_client[session.client]:
                del self._per_client[session.client]
        return session

    async def _close(self, key: str) -> None:
        session = self._forget(key)
        if session is None:
            return
        try:
            handle = await session.opening
        except (ValueError, EnvironmentRaised, EnvironmentLost):
            return  # it was never open
        await handle.close()


def failure(key: str, kind: ErrorKind, message: str) -> ReplyContent:
    """The reply of a session that failed."""
    return {"session": key, "error": {"kind": kind, "message": replace_surrogates(message)}}


def _mistakes(error: ValidationError | UnknownEnvironmentError | NotServed) -> str:
    """One-line message for an invalid request."""
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(
        f"{'.'.join(map(str, part['loc'])) or 'env_config'}: {part['msg']}"
        for part in error.errors(include_input=False, include_url=False)
    )
