"""An environment of OpenEnv, as a package: walk to a mark. It may have one of several faults."""

import json
import os
import time
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import yaml
from fastapi import FastAPI
from fastmcp import FastMCP
from openenv.core.env_server import Action, Environment, Observation, State, create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment

SEED = 42
MARK = Random(SEED).randrange(3, 9)


class Move(Action):
    by: int


class Seen(Observation):
    place: int
    mark: int
    more: Any = None


class Game(Environment[Move, Seen, State]):
    """Pays 1 on the mark."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    place: ClassVar[int] = 0
    fault: ClassVar[str] = ""
    resets = 0
    _state = State()

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        injected_state: dict[str, int] | None = None,
        **_: Any,
    ) -> Seen:
        self.resets += 1
        self.mark = Random(SEED if self.fault == "constant" else seed).randrange(3, 9)
        self._state = State(episode_id=episode_id, step_count=0)
        self._walk_to((injected_state or {}).get("place", 0))
        return self._seen()

    def step(self, action: Move, timeout_s: float | None = None, **_: Any) -> Seen:
        self._state.step_count += 1
        self._walk_to(self.place + action.by)
        seen = self._seen()
        idle = self.fault == "idle" and action.by == 0
        if idle or (self.fault == "backward" and action.by < 0):
            seen.reward = 1.0
        if self.fault == "noisy":
            seen.reward = Random().random()
        return seen

    def _walk_to(self, place: int) -> None:
        if self.fault == "shared":
            type(self).place = place
        else:
            self.place = place  # type: ignore[misc]

    def _seen(self) -> Seen:
        won = self.place == self.mark
        more = {
            "clock": time.time_ns(),
            "seedless": Random().random(),
            "leftover": self.resets,
            "process": os.getpid(),
            "hint": [1] * self.mark,
            "words": f"go {', '.join(['1'] * self.mark)} now",
        }.get(self.fault)
        return Seen(place=self.place, mark=self.mark, more=more, reward=float(won), done=won)

    @property
    def state(self) -> State:
        return self._state


class Tools(MCPEnvironment):
    """Has the tool `look`, and the rest of `Game`."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("tools")

        @server.tool
        def look() -> str:
            return "a wall"

        super().__init__(server)
        self._game = Game()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Seen:
        return self._game.reset(seed, episode_id)

    def _step_impl(self, action: Action, **_: Any) -> Seen:
        assert isinstance(action, Move)
        return self._game.step(action)

    @property
    def state(self) -> State:
        return self._game.state


def app(fault: str = "") -> FastAPI:
    kind = Tools if fault == "tools" else type("Faulty", (Game,), {"fault": fault})
    made = create_app(kind, Move, Seen, env_name="game", max_concurrent_envs=1 + (fault != "one"))
    if fault == "served":
        made.get("/walkthrough")(lambda: plan([1] * MARK))
    return made


def plan(moves: list[int]) -> dict[str, Any]:
    reset = {"episode_id": "probe", "seed": SEED}
    actions = [{"by": each} for each in moves]
    return {"plan_schema_version": "1", "reset": reset, "actions": actions}


def package(folder: Path, fault: str = "", **capabilities: Any) -> Path:
    """Writes a package whose solution and canaries earn what they should."""
    given = {
        "verifier": {"kind": "reward_channel"},
        "oracle": {"form": "script", "location": "solution.json"},
        "canaries": "canaries",
        **capabilities,
    }
    validation: dict[str, Any] = {
        "reward": {"range": [0.0, 1.0], "floor_margin": 0.5},
        "resources": {"cpu": 1, "memory_mb": 512, "disk_mb": 64, "episode_timeout_s": 60},
        "capabilities": given,
        "types": {"tags": ["demo"]},
        "execution": {"probe_path": "runtime.json"},
    }
    if "llm_judged" in given:
        validation["judge"] = {"model": "m", "version": "1"}
        validation["reward"] |= {"variance_tolerance": 0.25}
    folder.mkdir()
    (folder / "canaries").mkdir()
    files = {
        "openenv.yaml": yaml.safe_dump(
            {"name": "game", "app": "serve:app", "validation": validation}
        ),
        "serve.py": f"from game import app\n\napp = app({fault!r})\n",
        "runtime.json": json.dumps(plan([1, -1, 2])),
        "solution.json": json.dumps(plan([1] * MARK)),
        "short.json": json.dumps(plan([1] * (MARK - 1))),
        "solved.json": json.dumps({"place": MARK}),
        "canaries/backward.json": json.dumps(plan([-1, -1])),
    }
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder
