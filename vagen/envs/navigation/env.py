"""Navigation as an environment."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vagen.envs.base import State
from vagen.envs.claims import Claim
from vagen.envs.levels import Split
from vagen.envs.navigation import claims, words
from vagen.envs.navigation.config import NavigationConfig
from vagen.envs.navigation.episodes import sample_episode
from vagen.envs.navigation.levels import NavigationLevel, sample_level
from vagen.envs.navigation.rooms import Plan, Room, Thing
from vagen.envs.navigation.simulator import GeneratedRooms, Simulator, View
from vagen.envs.navigation.thor import ThorRooms
from vagen.envs.navigation.truth import Sighting, state_of
from vagen.envs.navigation.world import ACTIONS, Pose, World
from vagen.envs.turns import TurnEnv

_EXAMPLE = World(
    Plan(
        (Room(0.0, 6.0, 0.0, 6.0, "wood", "drywall"),),
        None,
        (
            Thing("sofa", "blue", 4.4, 5.6, 180, 0),
            Thing("chair", "red", 2.5, 3.8, 180, 0),
        ),
    )
)
"""The room of the prompt's example, with a sofa as target."""
_EXAMPLE_START = Pose(3.0, 2.0, 0)


class NavigationEnv(TurnEnv):
    """Walk to the thing that an instruction asks for."""

    env_name: ClassVar[str] = "Navigation"
    config_class: ClassVar[type[NavigationConfig]] = NavigationConfig
    calibration_options = (
        {"prompt_detail": "brief", "tasks": ["base", "long_horizon"]},
        {"tasks": ["complex_instruction", "visual_appearance"]},
    )
    difficulty_name = "moves of the shortest way"
    gallery_options: ClassVar[dict[str, Any]] = {"state_objects": "target"}
    needs_process: ClassVar[bool] = True
    claims: ClassVar[tuple[type[Claim], ...]] = claims.CLAIMS
    actions: ClassVar[tuple[str, ...]] = ACTIONS
    example_actions: ClassVar[tuple[str, ...]] = ("moveright", "moveahead", "moveahead")

    config: NavigationConfig

    def __init__(self, env_config: Any = None, **options: Any) -> None:
        """Creates the environment; the arguments are those of `AgentEnv`."""
        super().__init__(env_config, **options)
        self._simulator = _simulator(self.config)
        self._instruction = ""

    @classmethod
    def sample_level(cls, config: NavigationConfig, seed: int, split: Split) -> Any:
        """The level of `reset(seed=seed)` in this split."""
        if config.backend == "ai2thor":
            return sample_episode(config, seed, split)
        return sample_level(config, seed, split)

    @classmethod
    def difficulty(cls, level: Any) -> tuple[float, ...]:
        """Moves of the shortest path into reach; empty for AI2-THOR."""
        return (level.moves,) if isinstance(level, NavigationLevel) else ()

    @classmethod
    def distance(cls, state: State) -> float | None:
        """Metres on the floor plan to success, ignoring walls."""
        return max(0.0, state["target"]["distance"] - state["goal_distance"])

    @property
    def example_state(self) -> State:
        """State before the example response of the system prompt."""
        return self._example_at(_EXAMPLE_START)

    @classmethod
    def truth(cls, state: State, config: NavigationConfig) -> list[Claim]:
        """The target, and the nearest visible objects."""
        return claims.truth(state, everything=config.describes_all)

    @classmethod
    def read_claims(cls, text: str, config: NavigationConfig) -> list[Claim] | None:
        """Parses sentences or the structured notation."""
        return claims.read(text)

    @classmethod
    def score_claims(
        cls, said: Sequence[Claim], true: Sequence[Claim], config: NavigationConfig
    ) -> float:
        """The weighted scores of the target and of other objects."""
        return claims.score(said, true)

    def close(self) -> None:
        """Ends the simulator."""
        self._simulator.close()
        super().close()

    def _frame_size(self) -> tuple[int, int]:
        return self.config.picture_size, self.config.picture_size

    def _load_level(self, level: NavigationLevel, seed: int) -> None:
        self._instruction = level.instruction
        self._limit = self.config.max_steps
        if self.config.spare_moves is not None:
            self._limit = min(self._limit, level.moves + self.config.spare_moves)
        self._simulator.load(level)

    def _move(self, action: str) -> tuple[float, bool]:
        self._simulator.act(action)
        reward = self._rewards["step"]
        if self._is_won():
            return reward + self._rewards["success"], True
        return reward, False

    def _most_steps(self) -> int:
        return self._limit

    def _is_won(self) -> bool:
        return self._simulator.target_distance() < self.config.goal_metres

    def _read_state(self) -> State:
        return self._state_at(self._simulator.view())

    def _state_at(self, view: View) -> State:
        return state_of(
            view.pose,
            view.sightings,
            goal_distance=self.config.goal_metres,
            instruction=self._instruction,
        )

    def _plan(self, count: int) -> list[str]:
        # Only a finished episode has no path.
        return self._simulator.plan(count) or [ACTIONS[0]]

    def _after(self, state: State, actions: list[str]) -> State:
        # A state has nearby objects only; the simulator knows the whole plan.
        return self._state_at(self._simulator.view_after(actions))

    def example_response(self) -> str:
        """A response in the configured layout that is true in the example room."""
        actions = list(self.example_actions[: self.config.max_actions_per_step])
        return self._write(actions, self.example_state, self._example_after(actions))

    def _example_after(self, actions: Sequence[str]) -> State:
        pose = _EXAMPLE_START
        for action in actions:
            pose = _EXAMPLE.after(pose, action, self.config.move_metres)
        return self._example_at(pose)

    def _example_at(self, pose: Pose) -> State:
        seen = _EXAMPLE.in_view(pose)
        sightings = [
            Sighting(t.kind, t.colour, t.x, t.z, index in seen, is_target=index == 0)
            for index, t in enumerate(_EXAMPLE.plan.things)
        ]
        return state_of(
            pose,
            sightings,
            goal_distance=self.config.goal_metres,
            instruction="Go to the sofa.",
        )

    def picture(self) -> NDArray[np.uint8]:
        """The agent's view, uint8 [side, side, 3]."""
        return self._simulator.frame()

    def text_view(self) -> str:
        """The visible objects in words."""
        return words.in_view(self._state)

    def _shown(self) -> tuple[str, tuple[NDArray[np.uint8], ...]]:
        shown, images = super()._shown()
        return f"{self._instruction}\n{shown}", images

    def state_text(self, state: State) -> str:
        """A true description of `state`, with distances to the nearest half metre."""
        if self.config.layout.notation == "structured":
            return claims.record(state, everything=self.config.describes_all)
        return super().state_text(state)

    def _state_rule(self) -> str:
        return words.state_rule(self.config, self.state_text(self.example_state))

    def _rules(self) -> str:
        return words.rules(self.config)

    def _brief_rules(self) -> str:
        return "go where the instruction says . actions : " + " , ".join(ACTIONS)


def _simulator(config: NavigationConfig) -> Simulator:
    if config.backend == "ai2thor":
        return ThorRooms(config)
    return GeneratedRooms(config)
