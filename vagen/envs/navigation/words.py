"""Texts of Navigation: views and rules."""

from vagen.envs.base import State
from vagen.envs.navigation.config import NavigationConfig
from vagen.envs.navigation.truth import DIRECTIONS, MAX_OBJECTS, name_of
from vagen.envs.navigation.world import ACTIONS, QUARTER, TILT


def in_view(state: State) -> str:
    """All visible objects, nearest first, for text observations."""
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
    """The rules in words."""
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
    """Description of the state texts."""
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


def _turn(degrees: float) -> str:
    side = "right" if degrees >= 0 else "left"
    return f"{abs(round(degrees))} degrees to the {side}"
