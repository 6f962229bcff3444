"""An environment of OpenEnv: walk to a mark on a line that a picture shows."""

import base64
from functools import partial
from random import Random
from typing import Any

import numpy as np
from openenv.core.env_server import Action, Environment, Observation, State, create_app

from vagen.envs.images import png_bytes

LENGTH = 5


class Walk(Action):
    steps: int
    """Cells to the right, negative to the left."""


class Line(Observation):
    message: str
    view: dict[str, Any]
    """The picture in base64 under `png`."""


class WalkEnvironment(Environment[Walk, Line, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, limit: int = 50) -> None:
        super().__init__()
        self._limit = limit
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Line:
        chance = Random(seed)
        self._place, self._mark = chance.sample(range(LENGTH), 2)
        self._state = State(episode_id=episode_id or "episode", step_count=0)
        return self._line(None)

    def step(self, action: Walk, timeout_s: float | None = None, **_: Any) -> Line:
        if action.steps == 99:
            raise RuntimeError("the line broke")
        self._state.step_count += 1
        self._place = min(max(self._place + action.steps, 0), LENGTH - 1)
        return self._line(float(self._place == self._mark))

    def _line(self, reward: float | None) -> Line:
        frame = np.zeros((8, 8 * LENGTH, 3), np.uint8)
        frame[:, 8 * self._mark : 8 * self._mark + 8] = (0, 200, 0)
        frame[2:6, 8 * self._place + 2 : 8 * self._place + 6] = 255
        cut = reward == 0.0 and self._state.step_count >= self._limit
        return Line(
            message=f"at {self._place}, the mark is at {self._mark}",
            view={"png": base64.b64encode(png_bytes(frame)).decode()},
            reward=reward,
            done=reward == 1.0 or cut,
            metadata={"truncated": cut, "found": reward == 1.0},
        )

    @property
    def state(self) -> State:
        return self._state


class AsyncWalkEnvironment(WalkEnvironment):
    """The same, with coroutines only."""

    def reset(self, *_: Any, **__: Any) -> Line:
        raise NotImplementedError

    step = reset  # type: ignore[assignment]

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **_: Any
    ) -> Line:
        return WalkEnvironment.reset(self, seed, episode_id)

    async def step_async(self, action: Walk, *_: Any, **__: Any) -> Line:
        return WalkEnvironment.step(self, action)


def app(sessions: int, limit: int = 50) -> Any:
    made = partial(WalkEnvironment, limit)
    return create_app(made, Walk, Line, env_name="walk", max_concurrent_envs=sessions)
