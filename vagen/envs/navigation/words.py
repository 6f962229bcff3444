"""How Navigation writes states and rules."""

import json
from typing import Any

from vagen.envs.base import State
from vagen.envs.navigation.config import NavigationConfig
from vagen.envs.navigation.truth import DIRECTIONS, MOST_OBJECTS, name_of
from vagen.envs.navigation.world import ACTIONS, QUARTER, TILT

NOT_IN_VIEW = "not in view"


def half_metres(metres: float) -> str:
    """A distance as texts give it: to the nearest half metre."""
    return f"{round(2 * metres) / 2:.1f}"


def described(state: State, *, everything: bool) -> list[dict[str, Any]]:
    """The things that state texts speak of: the target first, then the nearest in view."""
    return [state["target"], *(state["objects"] if everything else [])]


def natural(state: State, *, everything: bool) -> str:
    """A state in words."""
    entries = described(state, everything=everything)
    return " . ".join(_sentence(entry, state) for entry in entries)


def structured(state: State, *, everything: bool) -> str:
    """A state as JSON."""
    target, *objects = [_record(entry, state) for entry in described(state, everything=everything)]
    flat = {"target": target.pop("name"), **target}
    return json.dumps({**flat, "objects": objects} if everything else flat)


def in_view(state: State) -> str:
    """All that is in view, nearest first, for those who see no picture."""
    entries = [*state["objects"], *state["others"]]
    if state["target"]["visible"]:
        entries.append(state["target"])
    lines = [
        f"{name_of(entry)} : {entry['direction']} , {_turn(entry['bearing'])} , "
        f"{entry['distance']:.1f} m"
        for entry in sorted(entries, key=lambda entry: entry["distance"])
    ]
    return "\n".join(["In view:", *(lines or ["nothing but walls"])])


def rules(config: NavigationConfig) -> str:
    """The game in words."""
    if config.render_mode == "vision":
        look = "The picture shows what you see from where you stand."
    else:
        look = (
            "You are told what is in view: for each thing where it is, how far you would have to "
            "turn to face it, and its distance in metres on the floor."
        )
    return (
        "You walk through furnished rooms: get within "
        f"{config.goal_metres:g} m of what the instruction asks for.\n"
        f"{look}\n"
        f"Actions: {', '.join(ACTIONS)}. A move goes {config.move_metres:g} m ahead, back or to "
        f"the side without turning; walls and furniture hold you back. rotateright and rotateleft "
        f"turn you by {QUARTER} degrees, lookup and lookdown tilt your view by {TILT}."
    )


def state_rule(config: NavigationConfig, example: str) -> str:
    """How state texts are written."""
    wanted = "the thing that is asked for"
    if config.describes_all:
        wanted += f" and up to {MOST_OBJECTS} of the nearest other things in view"
    if config.layout.notation == "structured":
        how = "as JSON, in metres and by direction"
    else:
        how = "by where each is from you and how many metres away"
    return (
        f"Describe a state by {wanted}, {how}; directions are {', '.join(DIRECTIONS)}. "
        f"Say so if what is asked for is not in view; such as: {example}"
    )


def _unseen_name(entry: dict[str, Any], state: State) -> str:
    """What to call a thing whose colour cannot be seen: its type, unless another one has it."""
    kinds = {other["type"] for other in (*state["objects"], *state["others"])}
    return name_of(entry) if entry["type"] in kinds else entry["type"]


def _sentence(entry: dict[str, Any], state: State) -> str:
    if not entry["visible"]:
        return f"{_unseen_name(entry, state)} is {NOT_IN_VIEW}"
    return f"{name_of(entry)} is {entry['direction']} at {half_metres(entry['distance'])} m"


def _record(entry: dict[str, Any], state: State) -> dict[str, Any]:
    if not entry["visible"]:
        return {"name": _unseen_name(entry, state), "direction": NOT_IN_VIEW}
    return {
        "name": name_of(entry),
        "direction": entry["direction"],
        "distance": float(half_metres(entry["distance"])),
    }


def _turn(degrees: float) -> str:
    side = "right" if degrees >= 0 else "left"
    return f"{abs(round(degrees))} degrees to the {side}"
