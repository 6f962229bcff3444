"""An environment as a server of OpenEnv: `vagen env serve NAME --openenv`.

An action is a model's response; an observation has the text and the pictures that it answers. Each
session of `/ws` has an environment of its own, in a worker process if its simulator needs one.
"""

import base64
from functools import partial
from importlib.metadata import version
from random import randrange
from typing import Any

import uvicorn
from fastapi import FastAPI
from openenv.core.env_server import Action, Environment, Observation, State, create_app
from openenv.core.env_server.types import EnvironmentMetadata
from pydantic import Field

from vagen.envs import get_environment
from vagen.envs.base import Observation as Seen
from vagen.envs.images import png_bytes
from vagen.service import HereEnv, SyncEnv, environments_of

SESSIONS = 256
"""Maximum number of open sessions."""


class Response(Action):
    """What the model writes."""

    response: str = Field(description="The whole response, with its tags")


class Turn(Observation):
    """What the model is shown; `metadata` has `success`, `truncated`, `rewards` and `metrics`."""

    system_prompt: str = Field(description="Rules and format, the same for all levels")
    text: str = Field(description="Text with <image> once per picture, in order")
    images: list[str] = Field(description="Pictures, PNG in base64")


class Truth(State):
    """The episode's progress and true state."""

    level_hash: str | None = Field(default=None, description="The level")
    truth: dict[str, Any] = Field(default_factory=dict, description="True state")


class VagenEnvironment(Environment[Response, Turn, Truth]):
    """A session's environment, made at its first reset."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env_name: str, env_config: dict[str, Any], split: str):
        """The arguments are those of `vagen.envs.make`."""
        super().__init__()
        self._given = (env_name, env_config, split)
        self._env: HereEnv | SyncEnv | None = None
        self._state = Truth()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, split: str | None = None
    ) -> Turn:
        """Starts the level of a seed, or of a random one, in the server's split or another."""
        if self._env is None:
            self._env = environments_of().open(*self._given)
        seen, info = self._env.reset(
            seed=randrange(2**31) if seed is None else seed,
            options={} if split is None else {"split": split},
        )
        self._state = Truth(
            episode_id=episode_id, level_hash=info["level_hash"], truth=info["state"]
        )
        return self._turn(seen)

    def step(self, action: Response, timeout_s: float | None = None) -> Turn:
        """Plays a response."""
        if self._env is None:
            raise RuntimeError("reset first; steps by HTTP have no session, use /ws")
        seen, reward, terminated, truncated, info = self._env.step(action.response)
        self._state.step_count += 1
        self._state.truth = info["state"]
        turn = self._turn(seen)
        turn.reward, turn.done = reward, terminated or truncated
        kept = {key: info[key] for key in ("success", "rewards", "metrics")}
        turn.metadata = {**kept, "truncated": truncated}
        return turn

    def _turn(self, seen: Seen) -> Turn:
        assert self._env is not None
        pictures = [base64.b64encode(png_bytes(frame)).decode() for frame in seen["images"]]
        return Turn(system_prompt=self._env.system_prompt(), text=seen["text"], images=pictures)

    @property
    def state(self) -> Truth:
        """Number of responses, level and true state."""
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        """Name and first line of the environment's description."""
        name = self._given[0]
        about = (get_environment(name).load().__doc__ or name).strip().partition("\n")[0]
        return EnvironmentMetadata(name=name, description=about, version=version("vagen"))

    def close(self) -> None:
        """Closes the environment."""
        if self._env is not None:
            self._env.close()


def make_app(env_name: str, env_config: dict[str, Any], split: str = "train") -> FastAPI:
    """The application of a server."""
    return create_app(
        partial(VagenEnvironment, env_name, env_config, split),
        Response,
        Turn,
        env_name=env_name,
        max_concurrent_envs=SESSIONS,
        state_cls=Truth,
    )


def serve(env_name: str, env_config: dict[str, Any], host: str, port: int) -> None:
    """Serves until SIGTERM or SIGINT."""
    uvicorn.run(make_app(env_name, env_config), host=host, port=port)
