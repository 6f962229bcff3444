"""Forward search for solutions: A* over pushes, counted in moves."""

import functools
import heapq

from vagen.envs.grid import Cell, Cells, cells_of
from vagen.envs.sokoban.game import Room, neighbours, shift


class SearchLimitReached(Exception):
    """The search budget was exhausted."""


@functools.lru_cache(maxsize=256)
def push_distances(room: Room) -> list[int]:
    """Minimum pushes of a single box from each cell to some target; -1 if impossible.

    Assumes that the player can reach every cell, so this is a lower bound.
    """
    distances = [-1] * (room.rows * room.columns)
    queue = cells_of(room.targets)
    for cell in queue:
        distances[cell] = 0
    for cell in queue:
        for offset in room.offsets:
            before, player = cell - offset, cell - 2 * offset
            if distances[before] < 0 and room.floor >> before & 1 and room.floor >> player & 1:
                distances[before] = distances[cell] + 1
                queue.append(before)
    return distances


def solve(room: Room, boxes: Cells, player: Cell, *, budget: int, weight: int = 1) -> list[int]:
    """Moves that put every box on a target, as indices of `ACTIONS`.

    Args:
        room: Walls and targets.
        boxes: Cells of the boxes, as many as targets.
        player: Cell of the player.
        budget: Maximum number of states to expand.
        weight: 1 gives a shortest solution; more gives some solution sooner.

    Returns:
        The moves; empty if there is no solution or nothing to do.

    Raises:
        SearchLimitReached: No solution was found within the budget.
    """
    distances = push_distances(room)
    dead = sum(1 << cell for cell, distance in enumerate(distances) if distance < 0)
    if boxes & dead or boxes == room.targets:
        return []
    start = (boxes, player)
    cost = {start: 0}
    # Per state: the state before the last push and the cell that the player pushed from.
    parents: dict[tuple[Cells, Cell], tuple[tuple[Cells, Cell], Cell]] = {}
    remaining = sum(distances[box] for box in cells_of(boxes))
    queue = [(weight * remaining, 0, remaining, start)]
    while queue:
        _, spent, remaining, state = heapq.heappop(queue)
        if spent > cost[state]:
            continue
        boxes, player = state
        if boxes == room.targets:
            return _moves(room, state, parents)
        budget -= 1
        if budget < 0:
            raise SearchLimitReached
        free = room.floor & ~boxes
        open_to_boxes = free & ~dead
        reached, front = 0, 1 << player
        while front:
            spent += 1
            for offset in room.offsets:
                pushers = front & shift(boxes, -offset) & shift(open_to_boxes, -2 * offset)
                while pushers:
                    pusher = pushers.bit_length() - 1
                    pushers ^= 1 << pusher
                    box, beyond = pusher + offset, pusher + 2 * offset
                    pushed = boxes ^ (1 << box | 1 << beyond)
                    following = (pushed, box)
                    if spent >= cost.get(following, spent + 1) or _jammed(room, pushed, beyond):
                        continue
                    cost[following] = spent
                    parents[following] = (state, pusher)
                    left = remaining - distances[box] + distances[beyond]
                    heapq.heappush(queue, (spent + weight * left, spent, left, following))
            reached |= front
            front = neighbours(front, room.columns) & free & ~reached
    return []


def _jammed(room: Room, boxes: Cells, pushed: Cell) -> bool:
    """Whether the pushed box is in a square of walls and boxes with one of them off target."""
    blocked = ~room.floor | boxes
    astray = boxes & ~room.targets
    for corner in (pushed, pushed - 1, pushed - room.columns, pushed - room.columns - 1):
        square = (0b11 | 0b11 << room.columns) << corner
        if blocked & square == square and astray & square:
            return True
    return False


def _moves(
    room: Room,
    state: tuple[Cells, Cell],
    parents: dict[tuple[Cells, Cell], tuple[tuple[Cells, Cell], Cell]],
) -> list[int]:
    """Walks and pushes that lead to `state`."""
    actions: list[int] = []
    while state in parents:
        (boxes, player), pusher = parents[state]
        walk = _walk(room, room.floor & ~boxes, player, pusher)
        push = room.offsets.index(state[1] - pusher)
        actions = [*walk, push, *actions]
        state = (boxes, player)
    return actions


def _walk(room: Room, free: Cells, start: Cell, end: Cell) -> list[int]:
    """A shortest walk over free cells."""
    fronts = [1 << end]
    reached = fronts[0]
    while not reached >> start & 1:
        front = neighbours(fronts[-1], room.columns) & free & ~reached
        reached |= front
        fronts.append(front)
    actions, cell = [], start
    for front in fronts[-2::-1]:
        action = next(a for a, offset in enumerate(room.offsets) if front >> cell + offset & 1)
        actions.append(action)
        cell += room.offsets[action]
    return actions
