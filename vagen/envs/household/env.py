"""Household as an environment, and its claims: location, hand, doors, the task's objects."""

import textwrap
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from pydantic import Field

from vagen.envs.base import State
from vagen.envs.claims import Claim, score_claims
from vagen.envs.household.expert import plan, remaining
from vagen.envs.household.homes import HouseholdConfig, HouseholdLevel, sample_level
from vagen.envs.household.world import (
    HALL,
    OBJECTS,
    PLACES,
    World,
    is_openable,
    kind_of,
    preposition,
    read_command,
)
from vagen.envs.levels import Split
from vagen.envs.parsing import ActionReader
from vagen.envs.turns import TurnEnv

PAGE = (256, 512)
"""Size of the image from `render`, in pixels."""
NOTHING = "nothing"
_THING = rf"(?:{'|'.join(OBJECTS)}) [1-9]\d?"
_PLACE = rf"(?:{'|'.join(PLACES)}) [1-9]\d?"
Thing = Annotated[str, Field(pattern=f"^{_THING}$", description="kind and number, as `mug 1`")]
Place = Annotated[str, Field(pattern=f"^{_PLACE}$", description="kind and number, as `desk 1`")]
Where = Annotated[str, Field(pattern=f"^(?:in the {HALL}|at {_PLACE})$", description="`at desk 1`")]
Held = Annotated[str, Field(pattern=f"^(?:{NOTHING}|{_THING})$", description="`mug 1` or nothing")]


class At(Claim):
    """The agent's location."""

    phrase = "i am {where}"
    where: Where


class Door(Claim):
    """Whether a place is open."""

    phrase = "{place} is {door}"
    subject = ("place",)
    place: Place
    door: Literal["open", "closed"]


class Holds(Claim):
    """The object in the agent's hand."""

    phrase = "i hold {thing}"
    thing: Held


class Condition(Claim):
    """Condition of an object."""

    phrase = "{thing} is {condition}"
    subject = None
    thing: Thing
    condition: Literal["hot", "cold", "clean"]


class Lies(Claim):
    """Location of an object; predictions cannot know contents that were not seen yet."""

    phrase = "{thing} is {side} {place}"
    subject = ("thing",)
    weight = 0.5
    thing: Thing
    side: Literal["in", "on"]
    place: Place

    def agreement(self, true: Claim) -> float:
        """Whether object and place are the same."""
        assert isinstance(true, Lies)
        return float((self.thing, self.place) == (true.thing, true.place))


class HouseholdEnv(TurnEnv):
    """Do a task in a home: find things, heat, cool or clean them, put them somewhere.

    Only objects at the agent's location are visible, and not in closed places.
    """

    env_name: ClassVar[str] = "Household"
    config_class: ClassVar[type[HouseholdConfig]] = HouseholdConfig
    calibration_options = ({"rooms": 2, "objects": 12},)
    difficulty_name = "actions of who knows the home"
    claims: ClassVar[tuple[type[Claim], ...]] = (At, Door, Holds, Condition, Lies)
    example_state: ClassVar[State] = {
        "env_name": "Household",
        "goal": {"task": "heat", "object": "mug", "place": "diningtable"},
        "rooms": {"kitchen": ["countertop 1", "fridge 1", "microwave 1", "diningtable 1"]},
        "at": "countertop 1",
        "holding": None,
        "where": {"apple 1": "fridge 1", "mug 1": "countertop 1"},
        "open": [],
        "conditions": {},
        "lamps": {"desklamp 1": "countertop 1"},
        "lit": [],
        "seen": ["countertop 1"],
    }
    example_actions: ClassVar[tuple[str, ...]] = (
        "take mug 1 from countertop 1",
        "go to microwave 1",
        "heat mug 1 with microwave 1",
    )

    config: HouseholdConfig
    _world: World

    @classmethod
    def sample_level(cls, config: HouseholdConfig, seed: int, split: Split) -> HouseholdLevel:
        """The home of `reset(seed=seed)` in this split."""
        return sample_level(config, seed, split)

    @classmethod
    def difficulty(cls, level: HouseholdLevel) -> tuple[float, ...]:
        """Actions to success with full knowledge, at most 60."""
        return (remaining(World.from_state(level.state)) or 60.0,)

    @classmethod
    def distance(cls, state: State) -> float | None:
        """Actions to success with full knowledge."""
        return remaining(_world_of(state))

    @classmethod
    def truth(cls, state: State, config: HouseholdConfig) -> list[Claim]:
        """Location, door, hand, and seen objects of the task."""
        here, held = state["at"], state["holding"]
        claims: list[Claim] = [At(where=f"in the {HALL}" if here == HALL else f"at {here}")]
        if here != HALL and is_openable(here):
            claims.append(Door(place=here, door="open" if here in state["open"] else "closed"))
        claims.append(Holds(thing=held or NOTHING))
        claims += [Condition(thing=held, condition=c) for c in state["conditions"].get(held, ())]
        kind, seen = state["goal"]["object"], set(state["seen"])
        claims += [
            Lies.model_validate({"thing": name, "side": preposition(place), "place": place})
            for name, place in state["where"].items()
            if kind_of(name) == kind and place in seen
        ]
        return claims

    @classmethod
    def record(cls, state: State, config: HouseholdConfig) -> dict[str, str]:
        """Claims, as `{"at": "fridge 1", "fridge 1": "open", "holding": ..., "mug 1": ...}`."""
        found: dict[str, str] = {}
        for claim in cls.truth(state, config):
            match claim:
                case At():
                    found["at"] = state["at"]
                case Door():
                    found[claim.place] = claim.door
                case Holds():
                    found["holding"] = claim.thing
                case Condition(thing=thing, condition=condition):
                    found[thing] = (
                        f"{found[thing]} and {condition}" if thing in found else condition
                    )
                case Lies():
                    found[claim.thing] = claim.place
        return found

    @classmethod
    def clauses(cls, record: dict[str, Any]) -> str:
        """The sentences of `record`."""
        parts: list[str] = []
        for name, value in record.items():
            if name == "at":
                parts.append(f"i am {'in the ' if value == HALL else 'at '}{value}")
            elif name == "holding":
                parts.append(f"i hold {value}")
            elif kind_of(str(value)) in PLACES:
                parts.append(f"{name} is {preposition(str(value))} {value}")
            else:
                parts += [f"{name} is {said}" for said in str(value).split(" and ")]
        return "\n".join(parts)

    @classmethod
    def score_claims(
        cls, said: Sequence[Claim], true: Sequence[Claim], config: HouseholdConfig
    ) -> float:
        """Precision and recall; 0 if an object is both held and somewhere."""
        held = {claim.thing for claim in said if isinstance(claim, Holds)}
        if any(isinstance(claim, Lies) and claim.thing in held for claim in said):
            return 0.0
        return score_claims(said, true)

    def _frame_size(self) -> tuple[int, int]:
        return PAGE

    def _load_level(self, level: HouseholdLevel, seed: int) -> None:
        self._world = World.from_state(level.state)
        self._answer = ""

    def _action_reader(self) -> ActionReader:
        return read_command

    def _move(self, action: str) -> tuple[float, bool]:
        places = action == "look" or self._world.at == HALL
        done = self._world.do(action)
        self._answer = "" if done else "Nothing happens.\n"
        if done and action == "look" and places:
            self._answer = self._places()
        reward = self._rewards["step"]
        if self._world.is_done():
            return reward + self._rewards["success"], True
        return reward, False

    def _is_won(self) -> bool:
        return self._world.is_done()

    def _read_state(self) -> State:
        return {"env_name": self.env_name, **self._world.to_state()}

    def _plan(self, count: int) -> list[str]:
        return plan(self._world, count)

    def _after(self, state: State, actions: list[str]) -> State:
        world = _world_of(state)
        for action in actions:
            world.do(action)
        # Unseen places stay unseen.
        return {"env_name": self.env_name, **world.to_state(), "seen": state["seen"]}

    def picture(self) -> NDArray[np.uint8]:
        """The text view as an image, uint8 [256, 512, 3]."""
        image = Image.new("RGB", (PAGE[1], PAGE[0]), "white")
        font = ImageFont.load_default(13)
        lines = [part for line in self.text_view().splitlines() for part in textwrap.wrap(line, 72)]
        ImageDraw.Draw(image).multiline_text((8, 8), "\n".join(lines), "black", font)
        return np.asarray(image).copy()

    def text_view(self) -> str:
        """Result of the last action, location, visible and held objects, and the task."""
        world = self._world
        answer = self._answer if self._steps_taken else self._places()
        held = world.holding or "nothing"
        if world.holding is not None and world.conditions.get(world.holding):
            held += f" ({', '.join(sorted(world.conditions[world.holding]))})"
        lines = [
            f"{answer}You are {_at(world.at)}.{self._seen_here()}",
            f"You hold {held}.",
            f"Task: {world.goal.text()}.",
        ]
        if self.config.show_commands:
            lines.append(f"Commands: {', '.join(world.commands())}.")
        return "\n".join(lines)

    def _places(self) -> str:
        rooms = self._world.rooms.items()
        return "".join(f"In the {room}: {', '.join(places)}.\n" for room, places in rooms)

    def _seen_here(self) -> str:
        world, here = self._world, self._world.at
        if here == HALL:
            return ""
        if world.is_closed(here):
            return f" {here} is closed."
        state = f" {here} is open." if is_openable(here) else ""
        lamps = [
            f"{lamp} ({'on' if lamp in world.lit else 'off'})"
            for lamp, place in world.lamps.items()
            if place == here
        ]
        things = [self._described(name) for name in world.visible()]
        listed = ", ".join(things + lamps) or "nothing"
        return f"{state} {preposition(here).capitalize()} it: {listed}."

    def _described(self, name: str) -> str:
        conditions = sorted(self._world.conditions.get(name, ()))
        return f"{name} ({', '.join(conditions)})" if conditions else name

    def _reason(self, actions: list[str]) -> str:
        return " then ".join(actions)

    def _state_rule(self) -> str:
        return (
            "Describe a state by where you are, whether it is open or closed, what you hold (and "
            "whether that is hot, cold or clean), and where you have seen things of the task, "
            f"such as: {self.state_text(self.example_state)}"
        )

    def _rules(self) -> str:
        return (
            "You do a task in a home. You see what lies at the place where you are, but nothing of "
            "what is closed; you can hold one thing.\n"
            "Actions, with the names of things as they are shown: go to PLACE, open PLACE, close "
            "PLACE, take THING from PLACE, put THING in/on PLACE, heat THING with microwave 1, "
            "cool THING with fridge 1, clean THING with sink 1, use desklamp 1, look. You must be "
            "at the place that an action names; heating, cooling and cleaning are done with the "
            "thing in your hand. look lists all places. To look at a thing under the lamp, hold it "
            "and use the lamp where it stands."
        )

    def _brief_rules(self) -> str:
        return (
            "do the task . actions : go to , open , close , take from , put in , heat with , "
            "cool with , clean with , use , look"
        )


def _world_of(state: State) -> World:
    return World.from_state({key: value for key, value in state.items() if key != "env_name"})


def _at(place: str) -> str:
    return "in the hall" if place == HALL else f"at {place}"
