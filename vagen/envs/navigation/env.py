"""Navigation as an environment, and its claims: the target and the nearest visible objects."""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vagen.envs.base import State
from vagen.envs.claims import Claim, score_claims
from vagen.envs.levels import Split
from vagen.envs.navigation.config import NavigationConfig
from vagen.envs.navigation.furniture import COLOURS, KINDS, THOR_TYPES
from vagen.envs.navigation.levels import NavigationLevel, sample_level
from vagen.envs.navigation.miniworld import GeneratedRooms
from vagen.envs.navigation.rooms import Plan, Room, Thing
from vagen.envs.navigation.thor import ThorRooms, sample_episode
from vagen.envs.navigation.truth import DIRECTIONS, MAX_OBJECTS, Sighting, name_of, state_of
from vagen.envs.navigation.world import ACTIONS, QUARTER, TILT, Pose, World
from vagen.envs.turns import TurnEnv

TARGET_SEEN, TARGET_UNSEEN = 0.7, 0.3
"""Weight of the target in a score; other objects have the rest. In a long search, a target out of
view is usual and needs no look."""
SECTOR = 22.5
"""Half of an eighth of the circle, in degrees."""
LEEWAY = 12.5
"""Tolerance in degrees of a bearing outside the named direction."""
METRES, SHARE = 0.5, 0.2
"""Tolerance of a distance in metres, or as a share of it if that is larger."""
NOT_IN_VIEW = "not in view"

_NAMES = rf"^(?:(?:{'|'.join(COLOURS)}) )?(?:{'|'.join([*KINDS, *THOR_TYPES])})$"
Name = Annotated[str, Field(pattern=_NAMES, description="a type with or without its colour")]
Direction = Literal[
    "ahead", "ahead-right", "right", "behind-right", "behind", "behind-left", "left", "ahead-left"
]


class Named(Claim):
    """A claim about an object."""

    phrase = ""
    subject = None
    name: Name
    _beyond: tuple["Seen", ...] = ()
    """For the true claim about the target: other visible objects, which need not be described."""

    @cached_property
    def kind(self) -> str:
        """The name without colour."""
        colour, _, rest = self.name.partition(" ")
        return rest if colour in COLOURS else self.name

    @classmethod
    def claim_words(cls) -> set[str]:
        """With the keys of `record`."""
        return super().claim_words() | {"target", "objects"}

    def names(self, other: "Named") -> bool:
        """Whether both may be about the same object: either may omit its colour."""
        kind = self.kind
        return kind == other.kind and (self.name == other.name or kind in (self.name, other.name))


class Seen(Named):
    """Position of a visible object relative to the agent."""

    phrase = "{name} is {direction} at {distance} m"
    direction: Direction
    distance: float = Field(ge=0, le=100)
    """Metres; true claims are rounded to the nearest half."""
    _exact: tuple[float, float] = (0.0, 0.0)
    """For true claims: bearing in degrees to the right, and distance in metres."""

    @classmethod
    def of(cls, entry: dict[str, Any]) -> "Seen":
        """The true claim about an object of a state."""
        distance = round(2 * entry["distance"]) / 2
        claim = cls.model_construct(
            name=name_of(entry), direction=entry["direction"], distance=distance
        )
        claim._exact = entry["bearing"], entry["distance"]
        return claim

    def agreement(self, true: Claim) -> float:
        """Whether bearing and distance are within the tolerances."""
        assert isinstance(true, Seen)
        if not self.names(true):
            return 0.0
        bearing, metres = true._exact
        turned = abs((DIRECTIONS[self.direction] - bearing + 180.0) % 360.0 - 180.0)
        off = abs(self.distance - metres)
        return float(turned <= SECTOR + LEEWAY and off <= max(METRES, SHARE * metres))


class Unseen(Named):
    """An object is not visible."""

    phrase = f"{{name}} is {NOT_IN_VIEW}"

    def agreement(self, true: Claim) -> float:
        """Whether the object is the same."""
        assert isinstance(true, Unseen)
        return float(self.names(true))


_EXAMPLE = World(
    Plan(
        (Room(0.0, 6.0, 0.0, 6.0, "wood", "drywall"),),
        None,
        (Thing("sofa", "blue", 4.4, 5.6, 180, 0), Thing("chair", "red", 2.5, 3.8, 180, 0)),
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
    claims: ClassVar[tuple[type[Claim], ...]] = (Seen, Unseen)
    actions: ClassVar[tuple[str, ...]] = ACTIONS
    example_actions: ClassVar[tuple[str, ...]] = ("moveright", "moveahead", "moveahead")

    config: NavigationConfig

    def __init__(self, env_config: Any = None, **options: Any) -> None:
        """Creates the environment; the arguments are those of `AgentEnv`."""
        super().__init__(env_config, **options)
        kind = ThorRooms if self.config.backend == "ai2thor" else GeneratedRooms
        self._simulator = kind(self.config)
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
        """The target first, then the nearest other visible objects, if they are described.

        Otherwise the nearest one is included while the target is not visible, since that could be
        said without looking.
        """
        entry = state["target"]
        others = [Seen.of(other) for other in (*state["objects"], *state["others"])]
        if entry["visible"]:
            target, count = Seen.of(entry), 0
        else:
            names = {other.kind for other in others}
            name = name_of(entry) if entry["type"] in names else entry["type"]
            target, count = Unseen.model_construct(name=name), 1
        if config.describes_all:
            count = MAX_OBJECTS
        target._beyond = tuple(others[count:])
        return [target, *others[:count]]

    @classmethod
    def record(cls, state: State, config: NavigationConfig) -> dict[str, Any]:
        """Claims, as `{"target": "red sofa", "direction": "ahead", ..., "objects": [...]}`."""
        target, *objects = [_record(claim) for claim in cls.truth(state, config)]
        flat = {"target": target.pop("name"), **target}
        return {**flat, "objects": objects} if config.describes_all or objects else flat

    @classmethod
    def clauses(cls, record: dict[str, Any]) -> str:
        """The sentences of `record`; its JSON if `objects` is no list."""
        rest = {key: value for key, value in record.items() if key not in ("target", "objects")}
        objects = record.get("objects", [])
        if not isinstance(objects, list):
            return super().clauses(record)
        return "\n".join(map(_sentence, ({**rest, "name": record.get("target")}, *objects)))

    @classmethod
    def score_claims(
        cls, said: Sequence[Claim], true: Sequence[Claim], config: NavigationConfig
    ) -> float:
        """The target's weight if it is correct, plus the weighted F1 of other objects.

        0 for a text with an object that is not there, or with more of a name than there are.
        Correct claims about further visible objects do not count.
        """
        target, *asked = [fact for fact in true if isinstance(fact, Named)]
        things = [target, *asked, *target._beyond]
        rest = [claim for claim in said if isinstance(claim, Named)]
        if _are_too_many(rest, things):
            return 0.0
        credit = 0.0
        if about := [claim for claim in rest if claim.names(target)]:
            best = max(about, key=lambda claim: _agreement(claim, target))
            credit = _agreement(best, target)
            rest.remove(best)
        rest = [claim for claim in rest if not any(_agreement(claim, t) for t in target._beyond)]
        if not rest and not asked:
            return credit
        share = TARGET_SEEN if isinstance(target, Seen) else TARGET_UNSEEN
        return share * credit + (1 - share) * score_claims(rest, asked)

    def close(self) -> None:
        """Ends the simulator."""
        self._simulator.close()
        super().close()

    def _frame_size(self) -> tuple[int, int]:
        return self.config.picture_size, self.config.picture_size

    def _load_level(self, level: Any, seed: int) -> None:
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
        return self._state_of(*self._simulator.view(), self._instruction)

    def _state_of(self, pose: Pose, sightings: list[Sighting], instruction: str) -> State:
        goal = self.config.goal_metres
        return state_of(pose, sightings, goal_distance=goal, instruction=instruction)

    def _plan(self, count: int) -> list[str]:
        # Only a finished episode has no path.
        return self._simulator.plan(count) or [ACTIONS[0]]

    def _after(self, state: State, actions: list[str]) -> State:
        # A state has nearby objects only; the simulator knows the whole plan.
        return self._state_of(*self._simulator.view_after(actions), self._instruction)

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
        return self._state_of(pose, sightings, "Go to the sofa.")

    def picture(self) -> NDArray[np.uint8]:
        """The agent's view, uint8 [side, side, 3]."""
        return self._simulator.frame()

    def text_view(self) -> str:
        """All visible objects, nearest first."""
        state = self._state
        entries = [*state["objects"], *state["others"]]
        if state["target"]["visible"]:
            entries.append(state["target"])
        lines = [
            f"{name_of(entry)} : {entry['direction']} , {_turn(entry['bearing'])} , "
            f"{entry['distance']:.1f} m"
            for entry in sorted(entries, key=lambda entry: entry["distance"])
        ]
        return "\n".join(["In view:", *(lines or ["nothing but walls"])])

    def _shown(self) -> tuple[str, tuple[NDArray[np.uint8], ...]]:
        shown, images = super()._shown()
        return f"{self._instruction}\n{shown}", images

    def _state_rule(self) -> str:
        config, example = self.config, self.state_text(self.example_state)
        wanted = "the thing that is asked for"
        if config.describes_all:
            wanted += f" and up to {MAX_OBJECTS} of the nearest other things in view"
        if config.layout.notation == "structured":
            how = "as JSON, in metres and by direction"
        else:
            how = "by where each is from you and how many metres away"
        nearest = "" if config.describes_all else ", with the nearest thing that is"
        return (
            f"Describe a state by {wanted}, {how}; directions are {', '.join(DIRECTIONS)}. "
            f"Say so if what is asked for is not in view{nearest}; such as: {example}"
        )

    def _rules(self) -> str:
        config = self.config
        if config.render_mode == "vision":
            look = "The picture shows what you see from where you stand."
        else:
            look = (
                "You are told what is in view: for each thing where it is, how far you would have "
                "to turn to face it, and its distance in metres on the floor."
            )
        return (
            "You walk through furnished rooms: get within "
            f"{config.goal_metres:g} m of what the instruction asks for.\n"
            f"{look}\n"
            f"Actions: {', '.join(ACTIONS)}. A move goes {config.move_metres:g} m ahead, back or "
            "to the side without turning; walls and furniture hold you back. rotateright and "
            f"rotateleft turn you by {QUARTER} degrees, lookup and lookdown tilt your view by "
            f"{TILT}."
        )

    def _brief_rules(self) -> str:
        return "go where the instruction says . actions : " + " , ".join(ACTIONS)


def _are_too_many(said: Sequence[Named], things: Sequence[Named]) -> bool:
    """Whether there are more claims about a name or type than objects."""
    names, kinds = (Counter(getattr(c, by) for c in said) for by in ("name", "kind"))
    most = Counter(thing.kind for thing in things)
    return any(
        names[claim.name] > sum(claim.names(thing) for thing in things)
        or kinds[claim.kind] > most[claim.kind]
        for claim in said
    )


def _agreement(claim: Claim, fact: Claim) -> float:
    return claim.agreement(fact) if type(claim) is type(fact) else 0.0


def _record(claim: Claim) -> dict[str, Any]:
    fields = claim.model_dump()
    return fields if isinstance(claim, Seen) else {**fields, "direction": NOT_IN_VIEW}


def _sentence(record: Any) -> str:
    """The sentence of a record; an invalid record is returned unchanged."""
    match record:
        case {"name": name, "direction": "not in view", **rest} if not rest:
            return f"{name} is {NOT_IN_VIEW}"
        case {"name": name, "direction": way, "distance": metres, **rest} if not rest:
            return f"{name} is {way} at {metres} m"
    return str(record)


def _turn(degrees: float) -> str:
    side = "right" if degrees >= 0 else "left"
    return f"{abs(round(degrees))} degrees to the {side}"
