"""The expert: performs the task with seen objects, and searches for others.

It knows the places and where kinds of objects are likely, but not the contents of unseen places.
"""

from vagen.envs.household.world import (
    APPLIANCES,
    OBJECTS,
    PLACES,
    World,
    is_openable,
    kind_of,
    put_command,
)


def plan(world: World, count: int) -> list[str]:
    """Up to `count` actions, at least one.

    A plan ends with the first action that reveals something, on which later actions depend.
    """
    world = world.copy()
    actions: list[str] = []
    while len(actions) < count and not (actions and world.is_done()):
        seen = len(world.seen)
        actions.append(next_action(world))
        world.do(actions[-1])
        if len(world.seen) > seen:
            break
    return actions


def remaining(world: World, limit: int = 60) -> float | None:
    """Actions to success with full knowledge; None beyond the limit."""
    world = world.copy()
    world.seen = set(world.places)
    for count in range(limit):
        if world.is_done():
            return float(count)
        world.do(next_action(world))
    return None


def next_action(world: World) -> str:
    """The expert's next action; `look` if there is nothing to do."""
    goal = world.goal
    if world.is_done():
        return "look"
    held = world.holding
    if held is not None and kind_of(held) != goal.object:
        return _put_down(world, held)
    if goal.task == "examine":
        return _examine(world, held)
    if held is None:
        return _fetch(world)
    if goal.condition is not None and not world.has(held, goal.condition):
        appliance = _first(world, APPLIANCES[goal.condition])
        if world.at != appliance:
            return f"go to {appliance}"
        return f"{goal.task} {held} with {appliance}"
    return _deliver(world, held)


def _deliver(world: World, held: str) -> str:
    place = world.at if kind_of(world.at) == world.goal.place else _first(world, world.goal.place)
    if world.at != place:
        return f"go to {place}"
    return f"open {place}" if world.is_closed(place) else put_command(held, place)


def _put_down(world: World, held: str) -> str:
    """Empties the hand: here if possible, otherwise on a surface."""
    if world.at in world.places and not world.is_closed(world.at):
        return put_command(held, world.at)
    if world.at in world.places:
        return f"open {world.at}"
    return f"go to {next(place for place in world.places if not is_openable(place))}"


def _fetch(world: World) -> str:
    known = [
        name
        for name, place in sorted(world.where.items())
        if kind_of(name) == world.goal.object and place in world.seen and not world.is_placed(name)
    ]
    if not known:
        return _search(world, OBJECTS[world.goal.object].places)
    here = [name for name in known if world.where[name] == world.at]
    name = (here or known)[0]
    place = world.where[name]
    if world.at != place:
        return f"go to {place}"
    return f"open {place}" if world.is_closed(place) else f"take {name} from {place}"


def _examine(world: World, held: str | None) -> str:
    if held is None:
        return _fetch(world)
    known = [lamp for lamp, place in world.lamps.items() if place in world.seen]
    if not known:
        return _search(world, ("desk", "sidetable", "countertop"))
    place = world.lamps[known[0]]
    return f"use {known[0]}" if world.at == place else f"go to {place}"


def _search(world: World, likely: tuple[str, ...]) -> str:
    """Visits the most likely unseen place."""
    if world.at in world.places and world.is_closed(world.at) and world.at not in world.seen:
        return f"open {world.at}"
    unseen = [place for place in world.places if place not in world.seen]
    if not unseen:
        return "look"
    order = (*likely, *PLACES)
    return f"go to {min(unseen, key=lambda place: order.index(kind_of(place)))}"


def _first(world: World, kind: str) -> str:
    return next(place for place in world.places if kind_of(place) == kind)
