"""Plays environments of OpenEnv, on their servers or in this process.

A session is a WebSocket at `/ws` of the server, and an environment of its own there. OpenEnv's
client opens a new one in silence when the connection breaks, so that an episode would go on in an
environment that was never reset; here the episode fails instead.
"""

import asyncio
import hashlib
import importlib
import inspect
import json
import re
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cached_property
from typing import Any, ClassVar, get_type_hints
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, ValidationError, field_validator, model_validator

from vagen.envs.adapters import AdapterError, SeedLevel, seed_level
from vagen.envs.adapters.foreign import ForeignConfig, ForeignEnv
from vagen.envs.adapters.pictures import frame_of
from vagen.envs.adapters.threads import DaemonThread
from vagen.envs.answers import AnswerError, flag, kind, number
from vagen.envs.base import IMAGE_PLACEHOLDER, Observation, State
from vagen.envs.levels import Split
from vagen.envs.parsing import ActionReader, ResponseParser

ANSWER = "{answer}"
"""Stands for the answer in `action`."""
MAX_BYTES = 100 << 20
"""Largest message of a server."""
_FIELD = re.compile(r"\{([\w.]+)\}")


class RefusedAction(ValueError):
    """The action does not fit the environment's schema."""


class OpenEnvConfig(ForeignConfig):
    """Options of an environment of OpenEnv."""

    url: str = ""
    """Address of a server; or else `module`."""
    module: str = ""
    """`module:Class` of an environment that runs in this process."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the class of `module`."""
    reset: dict[str, Any] = Field(default_factory=dict)
    """Arguments of `reset` besides `seed`."""
    actions: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Names of actions, such as `{left: {move: 0}}`; empty: see `action`."""
    action: dict[str, Any] = Field(default_factory=dict)
    """Action that holds `{answer}`; empty: the answer is the action as JSON."""
    example: str = ""
    """Example answer, if there are no `actions`."""
    text: str = ""
    """Text with `{field}` or `{field.part}` of an observation; empty: its JSON."""
    pictures: tuple[str, ...] = ()
    """Fields with a picture, several encoded ones, or null."""
    timeout: PositiveFloat = 60.0
    """Timeout of a call in seconds."""

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        if url and not (urlsplit(url).scheme in ("http", "https") and urlsplit(url).hostname):
            raise ValueError(f"write an address such as http://127.0.0.1:8000; got {url!r}")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _is_complete(self) -> "OpenEnvConfig":
        if bool(self.url) == bool(self.module):
            raise ValueError("give either url or module")
        if self.kwargs and self.url:
            raise ValueError("kwargs are of module; a server's reset takes reset")
        if self.actions and (self.action or self.example):
            raise ValueError("action and example are for answers without actions by name")
        if self.action and ANSWER not in json.dumps(self.action):
            raise ValueError(f"action must hold {ANSWER!r}, as in {{message: {ANSWER!r}}}")
        if not self.actions:
            if self.max_actions_per_step > 1:
                raise ValueError("max_actions_per_step must be 1 without actions by name")
            if _reader(self)(self.example) is None:
                what = "a text" if self.action else 'an action as JSON, such as {"move": 0}'
                raise ValueError(f"example must be {what}; got {self.example!r}")
        return self


class OpenEnvAdapter(ForeignEnv):
    """An environment of OpenEnv behind a mapping of actions and observations.

    An action that does not fit the environment's schema changes nothing and pays nothing.
    """

    env_name: ClassVar[str] = "OpenEnv"
    config_class: ClassVar[type[OpenEnvConfig]] = OpenEnvConfig
    waits: ClassVar[bool] = True

    config: OpenEnvConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Prepares without a connection; the arguments are those of `TurnEnv`.

        Raises:
            AdapterError: The class of `module` cannot be imported or created.
        """
        super().__init__(*args, **kwargs)
        self._session: RemoteSession | _Here | None = (
            _Here(self.config) if self.config.module else None
        )
        self._place = self.config.url or self.config.module
        if not self.config.actions:
            # An answer is one action, with the commas and tags in it.
            self._parser = ResponseParser(
                layout=self.config.layout,
                tags=self.config.tags,
                read_action=_reader(self.config),
                separator="\0",
                max_actions=1,
                markup_answer=True,
            )

    @classmethod
    def sample_level(cls, config: OpenEnvConfig, seed: int, split: Split) -> SeedLevel:
        """The environment's seed for `reset(seed=seed)` in this split; the same at any address."""
        given = {"kwargs": config.kwargs, "reset": config.reset}
        return seed_level(f"OpenEnv {config.module or 'server'}", given, seed, split)

    @cached_property
    def observation_space(self) -> Any:
        """Not known: pictures may have any size."""
        raise AttributeError("an environment of OpenEnv does not say the size of its pictures")

    def _frame_size(self) -> tuple[int, int]:
        return 0, 0

    def _step_name(self) -> str:
        return f"{self._place} step"

    def _load_level(self, level: SeedLevel, seed: int) -> None:
        is_new = self._session is None
        if self._session is None:
            config = self.config
            self._session = (
                RemoteSession(config.url, config.timeout) if config.url else _Here(config)
            )
        try:
            result = self._session.reset({**self.config.reset, "seed": level.seed})
        except (ConnectionError, TimeoutError):
            self.close()
            if is_new:
                raise
            return self._load_level(level, seed)  # the server ended it between episodes
        except RefusedAction as error:
            raise AdapterError(f"{self._place} refuses env_config.reset: {error}") from error
        self._begin(level.seed)
        self._show(result)

    def _move(self, action: str) -> tuple[float, bool]:
        assert self._session is not None
        try:
            result = self._session.step(_filled(self.config, action))
        except RefusedAction as error:
            self._refusal = f"The environment refused the action: {error}\n"
            return 0.0, False
        except (ConnectionError, TimeoutError):
            self.close()
            raise
        where = self._step_name()
        self._show(result)
        done = flag(result.get("done"), f"{where}'s done")
        observation = result["observation"]
        info = {**(result.get("metadata") or observation.get("metadata") or {}), **observation}
        truncated = done and flag(info.get("truncated", False), f"{where}'s truncated")
        # Null where an action pays nothing.
        reward = number(result.get("reward") or 0.0, f"{where}'s reward")
        return self._record(reward, done and not truncated, truncated, info)

    def _show(self, result: dict[str, Any]) -> None:
        """Keeps text and pictures of an observation."""
        self._refusal = ""
        observation = result.get("observation")
        if not isinstance(observation, dict):
            raise AnswerError(f"{self._place} shows {kind(observation)}; it must be an object")
        config, frames, placed = self.config, dict[str, list[NDArray[np.uint8]]](), []
        for path in config.pictures:
            found = self._field(observation, path)
            several = isinstance(found, list) and found and isinstance(found[0], str)
            parts = found if several else [] if found is None or found == [] else [found]
            seen = [frame_of(part, f"{self._place}'s {path}") for part in parts]
            frames[path] = seen if config.render_mode == "vision" else []

        def written(match: re.Match[str]) -> str:
            path = match[1]
            if path in frames:
                placed.append(path)
                return " ".join([IMAGE_PLACEHOLDER] * len(frames[path]))
            value = self._field(observation, path)
            text = value if isinstance(value, str) else json.dumps(value)
            return text.replace(IMAGE_PLACEHOLDER, "image")

        if config.text:
            self._text = _FIELD.sub(written, config.text)
        else:
            hidden = {"metadata", *(path.partition(".")[0] for path in frames)}
            shown = {key: value for key, value in observation.items() if key not in hidden}
            text = json.dumps(shown, ensure_ascii=False) if shown or not frames else ""
            self._text = text.replace(IMAGE_PLACEHOLDER, "image")
        before = [path for path in config.pictures if path not in placed]
        self._text = "\n".join(
            [IMAGE_PLACEHOLDER for path in before for _ in frames[path]] + [self._text]
        ).strip()
        self._frames = tuple(frame for path in (*before, *placed) for frame in frames[path])

    def _field(self, observation: dict[str, Any], path: str) -> Any:
        value: Any = observation
        for name in path.split("."):
            try:
                value = value[int(name)] if isinstance(value, list) else value[name]
            except (KeyError, IndexError, TypeError, ValueError):
                raise AnswerError(
                    f"{self._place} shows no {path!r}, which env_config names; it shows "
                    f"{', '.join(observation)}"
                ) from None
        return value

    def _read_state(self) -> State:
        """What is shown, since the true state is unknown."""
        digests = [hashlib.sha256(frame.tobytes()).hexdigest() for frame in self._frames]
        return {"env_name": self.env_name, "text": self._text, "pictures": digests}

    def _shown(self) -> tuple[str, tuple[NDArray[np.uint8], ...]]:
        return self._text, self._frames

    def _observe(self, moves: tuple[str, ...] | None) -> Observation:
        """Has the reason of a refusal; does not repeat an answer, which may be long."""
        named = self.config.actions or not moves
        seen = super()._observe(moves if named else ("your answer",))
        return Observation(text=self._refusal + seen["text"], images=seen["images"])

    def picture(self) -> NDArray[np.uint8]:
        """The first picture."""
        if not self._frames:
            raise AdapterError(f"{self._place} shows no picture: see env_config.pictures")
        return self._frames[0].copy()

    def text_view(self) -> str:
        """The text of the observation."""
        return self._text

    def _plan(self, count: int) -> list[str]:
        return super()._plan(count) if self.config.actions else [self.config.example]

    def example_response(self) -> str:
        """A response with the first action, or `example`."""
        return (
            super().example_response()
            if self.config.actions
            else self._write(self._plan(1), {}, {})
        )

    def _action_reader(self) -> ActionReader:
        return _reader(self.config)

    def close(self) -> None:
        """Ends the session."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _reader(config: OpenEnvConfig) -> ActionReader:
    """Reads an action as `_filled` takes it."""

    def read(text: str) -> str | None:
        if not text or config.action:
            return text or None
        try:
            return text if isinstance(json.loads(text), dict) else None
        except (ValueError, RecursionError):
            return None

    names = {name.casefold(): name for name in config.actions}
    return (lambda text: names.get(text.casefold())) if names else read


def _filled(config: OpenEnvConfig, action: str) -> dict[str, Any]:
    """The action that a text stands for."""
    if config.actions:
        return config.actions[action]
    if not config.action:
        return json.loads(action)
    answer = action.encode("utf-8", "replace").decode()  # JSON holds no lone surrogates

    def fill(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: fill(value) for key, value in part.items()}
        if isinstance(part, list):
            return [fill(value) for value in part]
        return part.replace(ANSWER, answer) if isinstance(part, str) else part

    return fill(config.action)


class RemoteSession:
    """A session of a server of OpenEnv, with an environment of its own there.

    Replies are those of the server: `observation`, `reward`, `done` and perhaps `metadata`.
    """

    def __init__(self, url: str, timeout: float):
        """Connects.

        Args:
            url: Address of the server.
            timeout: Timeout of each call in seconds.

        Raises:
            AdapterError: No server answers.
        """
        from websockets.sync.client import connect

        self._url, self._timeout = url, timeout
        self._open = ExitStack()
        local = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
        try:
            self._socket = self._open.enter_context(
                connect(
                    f"ws{url.removeprefix('http')}/ws",
                    open_timeout=timeout,
                    max_size=MAX_BYTES,
                    proxy=None if local else True,
                )
            )
        except Exception as error:  # of network, TLS, proxy, HTTP
            raise AdapterError(f"no server of OpenEnv answers at {url}: {error}") from error

    def reset(self, given: dict[str, Any]) -> dict[str, Any]:
        """The reply to `reset` with these arguments; errors as of `step`."""
        return self._call("reset", {"data": given})

    def step(self, action: dict[str, Any]) -> dict[str, Any]:
        """The reply to an action.

        Raises:
            RefusedAction: It does not fit the schema.
            ConnectionError: The server ended the session.
            TimeoutError: It took too long.
            RuntimeError: Another error of the server.
        """
        return self._call("step", {"data": action})

    def state(self) -> dict[str, Any]:
        """The environment's state; errors as of `step`."""
        return self._call("state", {})

    def _call(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        from websockets.exceptions import ConnectionClosed

        url, timeout = self._url, self._timeout
        try:
            with suppress(ConnectionClosed):  # a session is refused by a message and then its end
                self._socket.send(json.dumps({"type": kind, **data}))
            reply = json.loads(self._socket.recv(timeout))
        except TimeoutError:
            raise TimeoutError(f"{url} took more than {timeout:g} s for {kind}") from None
        except ConnectionClosed as error:
            raise ConnectionError(f"{url} ended the session: {error}") from error
        found = reply.get("data") or {}
        if reply.get("type") != "error":
            return found
        code, message = found.get("code"), found.get("message")
        if code == "VALIDATION_ERROR":
            raise RefusedAction(_mistakes(found.get("errors", ())) or message)
        advice = ""
        if code == "CAPACITY_REACHED":
            advice = "; each episode that runs needs a session: raise its max_concurrent_envs"
        raise RuntimeError(f"{url} {kind}: {message} ({code}){advice}")

    def close(self) -> None:
        """Ends the session."""
        self._open.close()


class _Here:
    """An environment in this process, always called in one thread."""

    def __init__(self, config: OpenEnvConfig):
        self._config = config
        self._thread = DaemonThread()
        self._runner = asyncio.Runner()
        self._env = self._wait_for(self._make, "creation")

    def _make(self) -> Any:
        from openenv.core.env_server import Environment

        where = self._config.module
        module, _, name = where.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise AdapterError(
                f"env_config.module {where!r} cannot be loaded: {error}; write module:Class, whose "
                "module is installed or on PYTHONPATH"
            ) from error
        if not (isinstance(found, type) and issubclass(found, Environment)):
            raise AdapterError(f"{where} is no class that derives from openenv.core.Environment")
        hints = [get_type_hints(each).get("action") for each in (found.step, found.step_async)]
        classes = [hint for hint in hints if hasattr(hint, "model_validate")]
        if not classes:
            raise AdapterError(f"{where}.step does not say the class of its action by a type hint")
        self._action: Any = classes[0]
        try:
            return found(**self._config.kwargs)
        except Exception as error:  # any failure of an environment
            raise AdapterError(
                f"{where}(**kwargs) raises {type(error).__name__}: {error}; kwargs are "
                f"{self._config.kwargs}"
            ) from error

    def reset(self, given: dict[str, Any]) -> dict[str, Any]:
        known = inspect.signature(self._method("reset")).parameters
        if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values()):
            given = {key: value for key, value in given.items() if key in known}
        return self._call("reset", **given)

    def step(self, action: dict[str, Any]) -> dict[str, Any]:
        try:
            read = self._action.model_validate(action)
        except ValidationError as error:
            raise RefusedAction(_mistakes(error.errors())) from error
        return self._call("step", read)

    def _method(self, name: str) -> Callable[..., Any]:
        """The class's coroutine function if it has one, as on a server."""
        from openenv.core.env_server import Environment

        own = getattr(type(self._env), f"{name}_async") is not getattr(Environment, f"{name}_async")
        return getattr(self._env, f"{name}_async" if own else name)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The result as a server would send it."""
        from openenv.core.env_server import WSObservationResponse, serialize_observation

        def call() -> str:
            found = self._method(method)(*args, **kwargs)
            if inspect.iscoroutine(found):
                found = self._runner.run(found)
            return WSObservationResponse(data=serialize_observation(found)).model_dump_json()

        return json.loads(self._wait_for(call, method))["data"]

    def _wait_for(self, call: Callable[[], Any], what: str) -> Any:
        future = self._thread.submit(call)
        try:
            return future.result(self._config.timeout)
        except TimeoutError:
            if future.done():
                raise  # raised by the environment
            raise TimeoutError(
                f"{self._config.module} took more than {self._config.timeout:g} s for {what}"
            ) from None

    def close(self) -> None:
        self._thread.submit(self._env.close)
        self._thread.submit(self._runner.close)
        self._thread.close()


def _mistakes(errors: Any) -> str:
    """Pydantic's errors in a line."""
    return "; ".join(
        f"{'.'.join(map(str, each.get('loc', ())))}: {each.get('msg')}" for each in errors
    )
