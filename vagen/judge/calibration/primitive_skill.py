"""Statements about PrimitiveSkill: coordinates and what is held, in many wordings."""

import json
from random import Random
from typing import Any, ClassVar

from vagen.envs.base import State
from vagen.judge.calibration.writer import Text, Writer

Numbers = list[int]

NEAR = (5, 5, 7)
"""Millimetres by which a right description may be off along x, y, z: inside the tolerance."""
FAR = (13, 13, 18)
"""Millimetres along x, y, z from which on a description `NEAR` one place is false of another."""


class PrimitiveSkillWriter(Writer):
    """Places every thing, and says what the gripper holds if it holds anything."""

    env_name: ClassVar[str] = "PrimitiveSkill"
    env_configs: ClassVar[tuple[dict[str, Any], ...]] = tuple(
        {"task": task, "render_mode": "text"}
        for task in ("AlignTwoCube", "PlaceTwoCube", "StackThreeCube", "PutAppleInDrawer")
    )
    thing: ClassVar[str] = "red cube"
    templates: ClassVar[tuple[str, ...]] = (
        "red cube at (0, 0, 20) . green cube at (0, 100, 20)",
        "red cube at (80, -100, 20) . green cube at (80, 100, 20)",
        "red cube at (50, 0, 20) . green cube at (50, 0, 60) . purple cube at (50, 0, 100)",
        "apple in drawer . drawer at (-10, 0, 34) . apple at (-10, 0, 34)",
        '{"red cube": [0, 0, 20], "blue cube": [50, 50, 20], "held": "nothing"}',
        "the gripper holds the red cube at (0, 0, 200)",
        "nothing is held and the gripper is empty",
        "apple at (120, 100, 24) . drawer at (-15, 0, 34)",
    )

    def plain(self, state: State) -> str:
        """The prompt's own words."""
        return " . ".join(
            f"{name} {'held ' if name == state['held'] else ''}at {_tuple(place)}"
            for name, place in state["objects"].items()
        )

    def true(self, rng: Random, state: State) -> Text:
        """Sentences mostly, else a dict; coordinates exact or within the tolerance."""
        places = {
            name: [value + rng.randint(-off, off) for value, off in zip(place, NEAR, strict=True)]
            if rng.random() < 0.5
            else list(place)
            for name, place in state["objects"].items()
        }
        names = list(places)
        rng.shuffle(names)
        if rng.random() < 0.2:
            return _dict(rng, {name: places[name] for name in names}, state["held"])
        manner = rng.choice(list(WORDINGS))
        parts = [_clause(rng, manner, name, places[name], state["held"]) for name in names]
        if state["held"] is None and rng.random() < 0.2:
            parts.append(rng.choice(EMPTY))
        on = _resting(state)
        if on is not None and rng.random() < 0.4:
            parts.append("the {} is on the {}".format(*on))
        joint = rng.choice(JOINTS)
        return Text(_join(parts, joint), f"sentences/{manner}")

    def differs(self, text: Text, state: State, other: State) -> bool:
        """Another thing held, other things, or one of them clearly elsewhere."""
        del text
        if state["held"] != other["held"] or set(state["objects"]) != set(other["objects"]):
            return True
        return any(
            abs(a - b) > apart
            for name, place in state["objects"].items()
            for a, b, apart in zip(place, other["objects"][name], FAR, strict=True)
        )

    def partial(self, rng: Random, state: State) -> Text:
        """One thing moved, left out, exchanged or without height, or the wrong one held."""
        manner = rng.choice(("moved", "left out", "exchanged", "no height", "wrong held"))
        places = {name: list(place) for name, place in state["objects"].items()}
        one, two, *_ = rng.sample(list(places), len(places))
        held = state["held"]
        match manner:
            case "moved":
                axis = rng.randrange(3)
                places[one][axis] += rng.choice((-1, 1)) * rng.randint(FAR[axis], 60)
            case "left out":
                del places[one]
            case "exchanged":
                places[one], places[two] = places[two], places[one]
                if not self.differs(Text("", ""), state, {**state, "objects": places}):
                    del places[one]
            case "no height":
                places[one] = places[one][:2]
            case "wrong held":
                held = next((name for name in places if name not in (held, "drawer")), None)
        return Text(self.plain({"objects": places, "held": held}), manner)

    def vague(self, rng: Random, state: State) -> Text:
        """Names things without saying where they are."""
        names = [name for name in state["objects"] if name != state["held"]]
        pattern = rng.choice(VAGUE)
        thing, things = rng.choice(names), " and ".join(f"the {name}" for name in names)
        return Text(pattern.format(thing=thing, names=things), pattern)

    def attacks(self, state: State, other: State) -> dict[str, str]:
        """Many places for one thing, ranges, every colour, dicts that say everything twice."""
        name = next(name for name in state["objects"] if name != "drawer")
        x, y, z = state["objects"][name]
        grid = [(a, b, 20) for a in range(-100, 151, 25) for b in range(-200, 201, 50)]
        every = ["red", "green", "blue", "yellow", "purple", "orange", "white", "black"]
        plain = self.plain(state)
        objects = state["objects"]
        return {
            "list/every place": " . ".join(f"{name} at {place}" for place in grid[:12]),
            "list/places of one": f"{name} at " + ", ".join(map(str, grid[:9])),
            "list/two places": f"{name} at ({x}, {y}, {z}) and at ({x + 50}, {y}, {z})",
            "list/every colour": " . ".join(f"{one} cube at ({x}, {y}, {z})" for one in every),
            "list/both": f"{plain} . {self.plain(other)}",
            "list/all held": " . ".join(f"{each} is held" for each in objects),
            "list/held and empty": f"{plain} . gripper is empty . gripper holds the {name}",
            "range/x": f"{name} at ({x - 60} to {x + 60}, {y}, {z})",
            "range/plus-minus": f"{name} at ({x} +- 100, {y} +- 100, {z})",
            "range/around": f"{name} around ({x}, {y}, {z})",
            "range/near": f"{name} near ({x}, {y}, {z})",
            "range/within": f"{name} within 200 mm of ({x}, {y}, {z})",
            "range/any": f"{name} at (x, y, z)",
            "range/huge": f"{name} at (1e1, 1e2, 1e3)",
            "range/inside": f"{name} at ({x}, {y}, {z}) or elsewhere in the workspace",
            "negated/place": f"{name} is not at (150, 200, 200)",
            "negated/all": plain.replace(" at ", " not at "),
            "negated/none": f"no {name} is at ({x}, {y}, {z})",
            "shared/respectively": " and ".join(objects) + f" at {_tuple([x, y, z])} respectively",
            "shared/same place": "all things are at " + _tuple([x, y, z]),
            "nameless/points": " ".join(map(_tuple, objects.values())),
            "nameless/copied": "Things are at, in no particular order: "
            + " ".join(map(_tuple, objects.values())),
            "nameless/first": f"the first thing at {_tuple([x, y, z])}",
            "dict/twice": json.dumps(objects)[:-1] + ", " + json.dumps(other["objects"])[1:],
            "dict/lists": json.dumps(dict.fromkeys(objects, grid[:5])),
            "dict/nested": json.dumps({"a": objects, "b": other["objects"]}),
            "dict/score": json.dumps({**objects, "score": 1}),
            "dict/infinite": json.dumps({each: [float("inf")] * 3 for each in objects}),
            "dict/words": json.dumps(dict.fromkeys(objects, "right")),
            "dict/after": json.dumps(objects) + " done",
            "time/before": f"{name} was at ({x}, {y}, {z})",
            "time/goal": f"{name} has to be at ({x}, {y}, {z})",
            "time/action": f"pick({x},{y},{z})",
            "time/path": f"{name} moves from (0, 0, 20) to ({x}, {y}, {z})",
        }


def _tuple(place: Numbers) -> str:
    return f"({', '.join(map(str, place))})"


def _brackets(rng: Random, place: Numbers) -> str:
    decimals = rng.random() < 0.15
    numbers = [f"{value}.0" if decimals else str(value) for value in place]
    text = rng.choice((", ", ",")).join(numbers)
    return rng.choice((f"({text})", f"({text})", f"[{text}]")) + rng.choice(("", "", " mm"))


def _axes(rng: Random, place: Numbers) -> str:
    equals = rng.choice(("=", " = ", ": ", "="))
    return ", ".join(
        f"{axis}{equals}{value}" for axis, value in zip("xyz", place, strict=True)
    ) + rng.choice(("", " mm"))


WORDINGS: dict[str, tuple[str, ...]] = {
    "prompt": ("{name} at {at}",),
    "copula": (
        "the {name} is at {at}",
        "The {name} is located at {at}",
        "the {name} is positioned at {at}",
        "the {name} is placed at {at}",
        "the {name} is situated at {at}",
        "the {name} is now at {at}",
        "the {name} is still at {at}",
        "the {name} is currently at {at}",
    ),
    "verbs": (
        "the {name} lies at {at}",
        "the {name} sits at {at}",
        "The {name} rests at {at}",
        "the {name} stays at {at}",
        "the {name} remains at {at}",
        "the {name} is resting at {at}",
        "the {name} is on the table at {at}",
        "the {name} stands at {at}",
    ),
    "colon": ("{name}: {at}", "- {name}: {at}", "{name} = {at}", "{name} -> {at}"),
    "noun": (
        "the position of the {name} is {at}",
        "the {name}'s position is {at}",
        "position of {name}: {at}",
        "the {name} has the coordinates {at}",
        "the coordinates of the {name} are {at}",
        "{name} position: {at}",
    ),
    "there": ("there is a {name} at {at}", "I see the {name} at {at}", "I see a {name} at {at}"),
    "future": (
        "the {name} will be at {at}",
        "the {name} ends up at {at}",
        "the {name} will end up at {at}",
        "the {name} will stay at {at}",
        "the {name} will remain at {at}",
    ),
}
"""Ways to say where a thing is, by manner."""

HELD = (
    "{name} held at {at}",
    "the {name} is held at {at}",
    "the gripper holds the {name} at {at}",
    "the {name} is held by the gripper at {at}",
    "The gripper is holding the {name} at {at}",
    "the {name} is in the gripper at {at}",
    "the {name} is gripped at {at}",
    "the {name} is at {at} . the {name} is held",
    "the {name} is at {at} . the gripper holds the {name}",
    "the {name} is being held by the gripper at {at}",
    "the {name} will be held at {at}",
    "the robot holds the {name} at {at}",
)
EMPTY = (
    "the gripper is empty",
    "nothing is held",
    "The gripper holds nothing",
    "no cube is held",
    "the gripper is not holding anything",
)
JOINTS = (" . ", ". ", ", ", "; ", "\n", " and ", ", and ", ", while ")
VAGUE = (
    "I see {names}.",
    "{names} are on the table",
    "the {thing} is somewhere on the table",
    "the {thing} is near the middle",
    "the {thing} is to the left",
    "the {thing} is close to the camera",
    "the {thing} is on the table",
    "{names} have to be moved",
    "everything is where it was",
    "The gripper is above the table.",
    "the {thing} is in front of the gripper",
    "there are some things on the table: {names}",
    "the {thing} is at its place",
    "the {thing} is where it belongs",
)


def _clause(rng: Random, manner: str, name: str, place: Numbers, held: str | None) -> str:
    patterns = HELD if name == held else WORDINGS[manner]
    at = rng.choice((_brackets, _brackets, _axes))(rng, place)
    noun = name.replace("cube", rng.choice(("cube", "cube", "block")))
    return rng.choice(patterns).format(name=noun, at=at)


def _join(parts: list[str], joint: str) -> str:
    text = joint.join(parts)
    return text if joint in (" . ", "\n", "; ") else text + "."


def _dict(rng: Random, places: dict[str, Numbers], held: str | None) -> Text:
    style = rng.choice(("json", "python", "underscores", "no held"))
    holding: dict[str, Any] = {"held": held or "nothing"}
    match style:
        case "json":
            return Text(json.dumps({**places, **holding}), "dict/json")
        case "python":
            tuples = {name: tuple(place) for name, place in places.items()}
            return Text(str({**tuples, **holding}), "dict/python")
        case "underscores":
            keys = {f"{name.replace(' ', '_')}": place for name, place in places.items()}
            return Text(json.dumps({**keys, **holding}), "dict/underscores")
    return Text(json.dumps({**places, **(holding if held else {})}), "dict/no held")


def _resting(state: State) -> tuple[str, str] | None:
    """A thing and what it lies on, if any does."""
    objects = {name: place for name, place in state["objects"].items() if name != state["held"]}
    for upper, (x, y, z) in objects.items():
        for lower, (a, b, c) in objects.items():
            if "cube" in upper and abs(x - a) < 15 and abs(y - b) < 15 and 30 < z - c < 50:
                return upper, lower
    return None
