"""A client of a run's agent, which `vagen serve RUN` serves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx
import numpy as np
from numpy.typing import NDArray

from vagen.envs.images import png_bytes, png_url


class AgentError(ValueError):
    """The server gives no actions; the message says why."""


@dataclass(frozen=True, slots=True)
class AgentTurn:
    """A turn of an agent, the first is 1; `actions` end before an invalid one."""

    turn: int
    actions: list[str]
    thought: str | None
    observation: str | None
    """What the agent says that it sees."""
    prediction: str | None
    """What it says that it will see."""
    answer: str | None
    format_correct: bool
    """Whether the layout was kept and every action is valid."""
    attempts: int
    """Responses, with those that could not be parsed and were repeated (`retries`)."""
    text: str


class AgentClient:
    """One session at a time with an agent.

    Example:
        ```python
        with AgentClient("http://127.0.0.1:8000", "RUN") as agent:
            agent.reset()
            turn = agent.act("<image>", [frame])
            while not robot.done:
                frame = robot.do(turn.actions)
                turn = agent.act("<image>", [frame])
            agent.end(success=robot.succeeded)
        ```
    """

    def __init__(self, address: str, name: str, api_key: str | None = None, timeout: float = 300):
        """Sends nothing yet; `address` is without `/v1`, `timeout` in seconds."""
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        url = f"{address.rstrip('/')}/v1/agents/{name}/"
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout)
        self.session: str | None = None
        """Name of the open session."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reset(self, **options: Any) -> None:
        """Opens a session, and ends the one before; `options`: `env`, `temperature`, `seed`."""
        self.end()
        self.session = self._post("reset", options)["session"]

    def act(
        self, text: str = "", frames: Sequence[NDArray[np.uint8]] = (), *, retries: int = 0
    ) -> AgentTurn:
        """The actions after an observation.

        Args:
            text: With `<image>` once per frame; without any, the frames come first.
            frames: Images, each uint8 [height, width, 3].
            retries: Times that the observation is shown again if a response cannot be parsed.

        Raises:
            AgentError: The session is closed or full, or the observation cannot be read.
        """
        seen = {"text": text, "images": [png_url(png_bytes(frame)) for frame in frames]}
        order = {"session": self.session, "observation": seen, "retries": retries}
        return AgentTurn(**self._post("act", order))

    def close(self) -> None:
        """Closes the session and the connection."""
        self.end()
        self._http.close()

    def end(self, success: bool | None = None) -> None:
        """Closes the session; `success`, if known, is counted in the server's metrics."""
        if self.session is not None:
            self._post("close", {"session": self.session, "success": success})
            self.session = None

    def _post(self, path: str, order: dict[str, Any]) -> dict[str, Any]:
        response = self._http.post(path, json=order)
        if response.status_code != 200:
            raise AgentError(f"{response.status_code}: {response.json()['error']['message']}")
        return response.json()
