"""Client of the environment service, whose sessions survive lost connections.

Calls made during a request are sent together in the next one. Failed or rejected requests are
repeated: opening and closing a session are idempotent, and resets and steps have a sequence number
by which the service recognises repetitions.
"""

import asyncio
import base64
import itertools
import os
import random
import time
import uuid
from collections import defaultdict, deque
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from vagen.config.infra import EnvironmentsConfig
from vagen.service.base import EnvironmentLost, EnvironmentRaised
from vagen.service.wire import WireReply

_REPEATED = frozenset({429, 502, 503, 504})
BATCH = 64
"""Most sessions in one request."""
_REQUESTS = 8
"""Most parallel requests per address; further calls are batched."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_LOOK_UP_SECONDS = 15.0
_FIELDS = {"reset": "resets", "step": "steps"}
"""Key of a request's list, where it is not `sessions`."""

_Call = tuple[orjson.Fragment, "asyncio.Future[dict[str, Any]]"]


class ServiceClient:
    """Opens sessions on all addresses of a service in turn. Belongs to one event loop."""

    def __init__(self, config: EnvironmentsConfig):
        """Prepares the client without connecting."""
        assert config.url is not None
        self._config = config
        self._url = config.url
        self._http: aiohttp.ClientSession | None = None
        self._addresses: dict[str, _Address] = {}
        self._current: list[_Address] = []
        self._looked_up = float("-inf")

    async def open(self, env_name: str, env_config: dict[str, Any], split: str) -> "SessionEnv":
        """Opens a session.

        Raises:
            EnvironmentRaised: The environment cannot be created.
            EnvironmentLost: The service is unreachable or rejects the client.
        """
        await self._look_up()
        address = min(self._current, key=lambda address: len(address.sessions))
        key = uuid.uuid4().hex
        address.sessions.add(key)
        try:
            created = await address.call(
                "create",
                {"session": key, "env_name": env_name, "env_config": env_config, "split": split},
            )
        except BaseException:
            address.sessions.discard(key)
            raise
        return SessionEnv(address, key, created["system_prompt"])

    async def environments(self) -> list[str]:
        """Names of the served environments.

        Raises:
            EnvironmentLost: The service is unreachable or rejects the client.
        """
        await self._look_up()
        answer = await self._current[0].get("/v1/environments")
        return [entry["env_name"] for entry in answer["environments"]]

    async def close(self) -> None:
        """Closes connections and, if the service is reachable, open sessions."""
        for address in self._addresses.values():
            await address.close()
        if self._http is not None:
            await self._http.close()

    async def _look_up(self) -> None:
        """Finds the service's addresses; a headless Kubernetes service has those of its pods."""
        now = time.monotonic()
        if now - self._looked_up < _LOOK_UP_SECONDS and self._current:
            return
        self._looked_up = now
        if self._http is None:
            headers = {"Content-Type": "application/json", "Host": urlsplit(self._url).netloc}
            if token := os.environ.get(self._config.token_env):
                headers["Authorization"] = f"Bearer {token}"
            self._http = aiohttp.ClientSession(
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=self._config.answer_seconds, sock_connect=10),
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            )
        urls = await _addresses_of(self._url)
        for url in urls:
            if url not in self._addresses:
                self._addresses[url] = _Address(url, self._http, self._config)
        self._current = [self._addresses[url] for url in urls]


class SessionEnv:
    """A session; implements `vagen.service.base.Handle`."""

    def __init__(self, address: "_Address", key: str, system_prompt: str):
        self.system_prompt = system_prompt
        self._address = address
        self._key = key
        self._sequence = itertools.count(1)

    async def ask(self, op: str, **fields: Any) -> WireReply:
        """See `Handle`."""
        if op in ("expert", "summary"):
            return WireReply(await self._address.call(op, self._key))
        order = {"session": self._key, "sequence": next(self._sequence), **fields}
        answer = await self._address.call(op, order)
        images = answer["observation"].pop("images")
        return WireReply(answer, [base64.b64decode(image) for image in images])

    async def close(self) -> None:
        """See `Handle`; an unreachable service closes the session when it is idle."""
        if self._key in self._address.sessions:
            self._address.sessions.discard(self._key)
            self._address.post("close", self._key)


class _Address:
    """One server: queues calls for the next request."""

    def __init__(self, url: str, http: aiohttp.ClientSession, config: EnvironmentsConfig):
        self.sessions: set[str] = set()
        """Keys of open sessions."""
        self._url = url
        self._http = http
        self._config = config
        self._patience = config.retry_seconds
        self._waiting: dict[str, deque[_Call]] = defaultdict(deque)
        self._under_way = 0
        self._due = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, operation: str, order: Any) -> dict[str, Any]:
        """The reply to a session's call.

        Raises:
            EnvironmentRaised: The environment failed.
            EnvironmentLost: The session is gone, or the service is unreachable.
        """
        for turn in itertools.count():
            answer = await self.post(operation, order)
            error = answer.get("error")
            if not error:
                return answer
            if error["kind"] == "full":  # other sessions will end
                await asyncio.sleep(_pause(turn))
            elif error["kind"] in ("environment", "invalid"):
                raise EnvironmentRaised(error["message"])
            else:
                raise EnvironmentLost(error["message"])
        raise AssertionError

    def post(self, operation: str, order: Any) -> "asyncio.Future[dict[str, Any]]":
        """Queues a call for the next request; returns a future of the service's reply.

        Raises:
            EnvironmentRaised: The call cannot be JSON, e.g. because of a very large number.
        """
        try:
            content = orjson.Fragment(orjson.dumps(order))
        except TypeError as error:
            raise EnvironmentRaised.of(error) from None
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[operation].append((content, answer))
        self._wake()
        return answer

    async def get(self, path: str) -> dict[str, Any]:
        """The reply to a GET request; raises `EnvironmentLost`."""
        return await self._request("GET", path, b"")

    async def close(self) -> None:
        """Closes all sessions and waits until everything is sent; stops retrying."""
        self._patience = 0.0
        for key in self.sessions:
            self.post("close", key)
        while self._tasks or self._due:
            await asyncio.sleep(0)
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _wake(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        """Starts requests for queued calls, up to the limit."""
        self._due = False
        for operation, waiting in self._waiting.items():
            while waiting and self._under_way < _REQUESTS:
                count = min(len(waiting), BATCH)
                calls = [waiting.popleft() for _ in range(count)]
                self._under_way += 1
                task = asyncio.ensure_future(self._send(operation, calls))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _send(self, operation: str, calls: list[_Call]) -> None:
        path = "/v1/sessions" if operation == "create" else f"/v1/sessions/{operation}"
        body = orjson.dumps({_FIELDS.get(operation, "sessions"): [order for order, _ in calls]})
        try:
            answers = (await self._request("POST", path, body))["results"]
        except EnvironmentLost as error:
            answers = [{"error": {"kind": "lost", "message": str(error)}}] * len(calls)
        finally:
            self._under_way -= 1
            self._wake()
        for (_, waiter), answer in zip(calls, answers, strict=True):
            if not waiter.done():
                waiter.set_result(answer)

    async def _request(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        """The reply to a request, retried while the service is unreachable or busy.

        Raises:
            EnvironmentLost: Retries fail, or the service rejects the request.
        """
        begun = time.monotonic()
        for turn in itertools.count():
            pause = _pause(turn)
            try:
                async with self._http.request(method, self._url + path, data=body) as response:
                    content = await response.read()
                    if response.status == 200:
                        return orjson.loads(content)
                    failure = f"{response.status}: {_detail(content)}"
                    if response.status not in _REPEATED:
                        raise EnvironmentLost(f"{self._url}{path} refuses with {failure}")
                    after = response.headers.get("Retry-After", "")
                    pause = max(pause, float(after) if after.isdigit() else 0.0)
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                failure = f"{type(error).__name__}: {error}"
            if time.monotonic() + pause > begun + self._patience:
                raise EnvironmentLost(
                    f"the environment service {self._url} gave no answer for "
                    f"{self._config.retry_seconds:g} s: {failure}"
                )
            await asyncio.sleep(pause)
        raise AssertionError


def served(config: EnvironmentsConfig) -> list[str]:
    """Names of the environments of a service, for synchronous code.

    Raises:
        EnvironmentLost: It is unreachable or rejects the client.
    """

    async def ask() -> list[str]:
        client = ServiceClient(config.model_copy(update={"retry_seconds": 0.0}))
        try:
            return await client.environments()
        finally:
            await client.close()

    return asyncio.run(ask())


async def _addresses_of(url: str) -> list[str]:
    """URLs with each address of the host; the URL itself for one address, or with a certificate."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        return [url]
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(parts.hostname, parts.port or 80, type=1)
    except OSError:
        return [url]  # connecting will raise an error and retry
    hosts = sorted({str(entry[4][0]) for entry in found if entry[0].name == "AF_INET"})
    if len(hosts) < 2:
        return [url]
    return [f"http://{host}:{parts.port or 80}{parts.path}" for host in hosts]


def _pause(turn: int) -> float:
    """Seconds before the next attempt: increasing, with jitter."""
    return min(_FIRST_PAUSE * 2 ** min(turn, 10), _LONGEST_PAUSE) * random.uniform(0.5, 1.0)


def _detail(content: bytes) -> str:
    try:
        return str(orjson.loads(content)["detail"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return content[:200].decode("utf-8", "replace")
