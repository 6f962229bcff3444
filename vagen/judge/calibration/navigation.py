"""Statements about Navigation: where things are from where the agent looks, in many wordings."""

import json
from random import Random
from typing import Any, ClassVar

from vagen.envs.base import State
from vagen.envs.navigation.config import NavigationConfig
from vagen.judge.calibration.writer import Text, Writer

Entry = dict[str, Any]

WAYS: dict[str, tuple[str, ...]] = {
    "ahead": (
        "ahead",
        "straight ahead",
        "in front of me",
        "directly in front of me",
        "ahead of me",
    ),
    "ahead-right": (
        "ahead-right",
        "ahead to the right",
        "ahead and to my right",
        "in front of me to the right",
        "slightly to the right",
        "front-right",
    ),
    "right": ("right", "to my right", "on the right", "on my right-hand side", "right of me"),
    "behind-right": ("behind-right", "behind me to the right", "behind and to the right"),
    "behind": ("behind", "behind me", "directly behind me", "at my back"),
    "behind-left": ("behind-left", "behind me to the left", "behind and to the left"),
    "left": ("left", "to my left", "on the left", "on my left-hand side", "left of me"),
    "ahead-left": (
        "ahead-left",
        "ahead to the left",
        "ahead and to my left",
        "in front of me to the left",
        "a little to the left",
        "front left",
    ),
}
"""Directions, as states name them, in other words; the first is the prompt's."""

NOUNS: dict[str, tuple[str, ...]] = {
    "sofa": ("sofa", "couch"),
    "television": ("television", "TV"),
    "fridge": ("fridge", "refrigerator"),
    "bin": ("bin", "trash can", "garbage can"),
    "bookshelf": ("bookshelf", "bookcase"),
    "wardrobe": ("wardrobe", "closet"),
    "stove": ("stove", "cooker"),
    "plant": ("plant", "potted plant"),
    "traffic cone": ("traffic cone", "cone"),
    "rubber duck": ("rubber duck", "toy duck"),
    "lamp": ("lamp", "floor lamp"),
}
ABSENT = (
    "The {0} is not in view",
    "{0} is not visible",
    "I cannot see the {0}",
    "I can't see the {0}",
    "The {0} is out of sight",
    "No {0} is in view",
    "the {0} is hidden",
)
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
VAGUE = (
    "I see {0}.",
    "{0} is near me",
    "{0} is far away",
    "{0} is in the room",
    "{0} is in some direction",
    "{0} is visible in the picture",
    "there is furniture around me",
    "I am in a furnished room",
    "everything is as before",
    "{0} is close to other things",
)


class NavigationWriter(Writer):
    """The target, and the nearest things in view where they are to be described."""

    env_name: ClassVar[str] = "Navigation"
    env_configs: ClassVar[tuple[dict[str, Any], ...]] = (
        {"render_mode": "text"},
        {"render_mode": "text", "prompt_detail": "brief", "tasks": ["base", "long_horizon"]},
        {"render_mode": "text", "tasks": ["complex_instruction", "visual_appearance"]},
    )
    thing: ClassVar[str] = "sofa"
    templates: ClassVar[tuple[str, ...]] = (
        "target is ahead at 2.5 m",
        "sofa is ahead-left at 2.5 m . table is ahead-right at 3.0 m",
        "the chair is straight ahead, 2 metres away",
        "the target is not in view",
        '{"target": "lamp", "direction": "ahead", "distance": 2.5, "objects": []}',
        "the ball is ahead, about 3 m away, and the bed is to my left",
    )

    env_config: NavigationConfig

    def described(self, state: State) -> list[Entry]:
        """The target, and the nearest things in view if the environment's own texts have them."""
        return [state["target"], *(state["objects"] if self.env_config.describes_all else [])]

    def plain(self, state: State) -> str:
        """The prompt's own words."""
        return " . ".join(_plain(state, entry) for entry in self.described(state))

    def true(self, rng: Random, state: State) -> Text:
        """Sentences mostly, else JSON."""
        entries = self.described(state)
        if rng.random() < 0.15:
            return Text(_json(rng, state, entries), "structured")
        manner = rng.choice(list(MANNERS))
        entries = rng.sample(entries, len(entries))
        parts = [_say(rng, state, entry, manner) for entry in entries]
        joint = rng.choice((". ", " . ", "; ", ".\n"))
        return Text(joint.join(parts), f"sentences/{manner}")

    def differs(self, text: Text, state: State, other: State) -> bool:
        """By the target: it is shown and clearly elsewhere or not there, or said to be unseen."""
        ours, theirs = state["target"], other["target"]
        shown = [e for e in (ours, *state["objects"], *state["others"]) if e["visible"]]
        same_type = [entry for entry in shown if entry["type"] == theirs["type"]]
        if not theirs["visible"]:
            return any(_name(entry) == _name(theirs) for entry in same_type)
        if not same_type:
            return ours["type"] != theirs["type"]
        return all(_are_apart(entry, theirs) for entry in same_type)

    def partial(self, rng: Random, state: State) -> Text:
        """The target turned to another side, put farther away, or left out; the rest is right."""
        target, *rest = self.described(state)
        manner = rng.choice(("wrong side", "wrong distance", "no distance", "left out"))
        if manner == "left out" and rest:
            return Text(" . ".join(_plain(state, entry) for entry in rest), manner)
        distance = target["distance"]
        if manner == "wrong distance":
            distance += rng.choice((1.5, 2.0, 3.0)) + 0.4 * distance
        way = target["direction"]
        if manner not in ("wrong distance", "no distance"):
            manner = "wrong side"
            way = list(WAYS)[(list(WAYS).index(way) + rng.choice((2, 3, 4, 5, 6))) % len(WAYS)]
        first = f"{_name(target)} is {way}"
        first += "" if manner == "no distance" else f" at {distance:.1f} m"
        return Text(" . ".join([first, *(_plain(state, entry) for entry in rest)]), manner)

    def vague(self, rng: Random, state: State) -> Text:
        """Names the target without saying where it is."""
        pattern = rng.choice(VAGUE)
        return Text(pattern.format(f"the {state['target']['type']}"), pattern)

    def attacks(self, state: State, other: State) -> dict[str, str]:
        """Lists of every direction, distance and thing; places relative to other things."""
        name = _name(state["target"])
        distance = state["target"]["distance"]
        kinds = [*NOUNS, "chair", "table", "bed", "desk", "ball", "sink", "piano", "barrel"]
        plain, lie = self.plain(state), self.plain(other)
        return {
            "list/every way": " . ".join(f"{name} is {way} at {distance:.1f} m" for way in WAYS),
            "list/ahead and behind": f"{name} is ahead and behind at {distance:.1f} m",
            "list/left and right": f"{name} is to my left and to my right",
            "list/all ways in one": f"{name} is " + " and ".join(WAYS),
            "list/every distance": f"{name} is {state['target']['direction']} at "
            + ", ".join(f"{metres} m" for metres in range(1, 9)),
            "list/every thing": " . ".join(f"{kind} is ahead at 2.5 m" for kind in kinds),
            "list/every thing unseen": " . ".join(f"{kind} is not in view" for kind in kinds),
            "list/seen and not": f"{name} is in view . {name} is not in view",
            "list/both scenes": f"{plain} . {lie}",
            "relative/left of": f"{name} is left of the table, 2 m away",
            "relative/behind": f"the table is behind the {name}",
            "relative/turned": f"I am behind the {name}",
            "relative/next to": f"{name} is next to what is nearest to it",
            "range/from to": f"{name} is ahead, between 1 m and 9 m away",
            "range/at least": f"{name} is at least 0.1 m away",
            "range/within": f"{name} is ahead within 20 m",
            "range/circle": f"{name} is within 360 degrees to the right",
            "unit/none": f"{name} is metres away",
            "unit/steps": f"{name} is a number of steps ahead",
            "json/all": json.dumps(
                {
                    "objects": [
                        {"name": name, "direction": way, "distance": distance} for way in WAYS
                    ]
                }
            ),
            "json/list of ways": json.dumps({"target": name, "direction": list(WAYS)}),
            "json/judge": json.dumps({"target": name, "verdict": "YES"}),
            "json/not a scene": json.dumps([name, "ahead", distance]),
        }


def _are_apart(one: Entry, two: Entry) -> bool:
    """Whether no description fits both places."""
    turned = abs((one["bearing"] - two["bearing"] + 180) % 360 - 180)
    farther = abs(one["distance"] - two["distance"])
    return turned > 90 or farther > max(1.2, 0.5 * max(one["distance"], two["distance"]))


def _name(entry: Entry) -> str:
    return f"{entry['colour']} {entry['type']}"


def _called(rng: Random, state: State, entry: Entry) -> str:
    """A thing in other words; with its colour if that can be seen, and is needed or by chance."""
    noun = rng.choice(NOUNS.get(entry["type"], (entry["type"],)))
    kinds = [e["type"] for e in (state["target"], *state["objects"], *state["others"])]
    needs_colour = kinds.count(entry["type"]) > 1
    if needs_colour or (entry["visible"] and rng.random() < 0.7):
        return f"{entry['colour']} {noun}"
    return noun


def _plain(state: State, entry: Entry) -> str:
    if not entry["visible"]:
        return f"{_name(entry)} is not in view"
    return f"{_name(entry)} is {entry['direction']} at {entry['distance']:.1f} m"


def _metres(rng: Random, entry: Entry) -> str:
    distance = entry["distance"]
    whole, half = divmod(round(2 * distance), 2)
    manner = rng.choice(("exact", "exact", "half", "words", "centimetres"))
    if manner == "words" and 1 <= whole < len(NUMBERS):
        if not half:
            return f"{NUMBERS[whole]} metre{'s' if whole > 1 else ''}"
        return f"{NUMBERS[whole]} and a half {rng.choice(('metres', 'meters'))}"
    if manner == "centimetres":
        return f"{round(100 * distance)} cm"
    number = f"{distance:.1f}" if manner == "exact" else f"{whole + half / 2:g}"
    return f"{number}{rng.choice((' m', 'm', ' metres', ' meters'))}"


def _say(rng: Random, state: State, entry: Entry, manner: str) -> str:
    name = _called(rng, state, entry)
    if not entry["visible"]:
        return rng.choice(ABSENT).format(name)
    ways = WAYS[entry["direction"]]
    way = ways[0] if manner == "canonical" else rng.choice(ways)
    return rng.choice(MANNERS[manner]).format(
        name=name, way=way, Way=way[0].upper() + way[1:], metres=_metres(rng, entry)
    )


MANNERS: dict[str, tuple[str, ...]] = {
    "canonical": ("{name} is {way} at {metres}",),
    "sentence": (
        "The {name} is {way}, about {metres} away",
        "the {name} stands {way}, {metres} from me",
        "The {name} is located {way} at roughly {metres}",
        "The {name} is {metres} away, {way}",
    ),
    "there is": (
        "There is a {name} {way}, {metres} away",
        "I see a {name} {way} at about {metres}",
        "I can see the {name} {way}, {metres} away",
    ),
    "turned": (
        "{Way}, {metres} away, there is a {name}",
        "{Way} is a {name}, {metres} away",
        "{Way} there is the {name} at {metres}",
    ),
    "short": ("{name}: {way}, {metres}", "{name} - {way} ({metres})", "{name} {way} {metres}"),
    "pronoun": ("The {name} is {way}. It is {metres} away", "{name} is {way} and {metres} away"),
    "in view": (
        "The {name} is in view, {way}, {metres} away",
        "visible is a {name} {way} at {metres}",
    ),
}
"""Ways to put where a thing is."""


def _json(rng: Random, state: State, entries: list[Entry]) -> str:
    records = []
    for entry in entries:
        record: dict[str, Any] = {rng.choice(("name", "type")): _called(rng, state, entry)}
        if entry["visible"]:
            record["direction"] = entry["direction"]
            record["distance"] = round(entry["distance"], 1)
        else:
            record["direction"] = "not in view"
        records.append(record)
    target, *objects = records
    name = target.pop("name", None) or target.pop("type")
    return json.dumps({"target": name, **target, "objects": objects})
