"""Generates levels by backward search from the solved states of a random room.

A state is a set of boxes and a player. Undoing a move walks the player to a free neighbouring cell,
or walks it backwards while it pulls the box in front of it. Breadth-first search from all solved
states reaches each state after the number of moves of its shortest solution.
"""

import functools
import itertools
from random import Random

from vagen.envs.grid import Cell, Cells, draw_cell, nth_cell
from vagen.envs.levels import MAX_CANDIDATES, LevelError, Split, content_hash, draw_index, split_of
from vagen.envs.sokoban.game import Room, SokobanConfig, SokobanLevel, flood, neighbours

Layer = dict[Cells, Cells]
"""States by boxes: the set of the player's cells."""


def draw_room(rng: Random, config: SokobanConfig) -> Room | None:
    """A random connected room with targets; None if too few cells are connected."""
    rows, columns = config.dim_room
    density, draw = config.wall_density, rng.random
    floor = sum([bit for bit in _interior(rows, columns) if draw() >= density])
    if floor.bit_count() < 2 * config.num_boxes + 2:
        return None
    floor = flood(1 << draw_cell(rng, floor), floor, columns)
    if floor.bit_count() < 2 * config.num_boxes + 2:
        return None
    targets = 0
    for _ in range(config.num_boxes):
        targets |= 1 << draw_cell(rng, floor & ~targets)
    return Room(rows, columns, floor, targets)


@functools.cache
def _interior(rows: int, columns: int) -> list[Cells]:
    """Cells that are not on the edge, each as a set."""
    inside = itertools.product(range(1, rows - 1), range(1, columns - 1))
    return [1 << row * columns + column for row, column in inside]


def backward_layers(room: Room, *, depth: int | None, budget: int) -> list[Layer]:
    """States by the length of their shortest solution.

    Args:
        room: Walls and targets.
        depth: Maximum length of a solution; None for all.
        budget: Maximum number of box arrangements to examine. If it is exhausted, the last layer is
            incomplete, but lengths are still exact.

    Returns:
        Element `n` has states whose shortest solution has `n` moves.
    """
    floor, columns, offsets = room.floor, room.columns, room.offsets
    unseen: Layer = {room.targets: 0}
    pullers: Layer = {room.targets: _pullers(floor & ~room.targets, room.targets, columns)}
    layer: Layer = {room.targets: floor & ~room.targets}
    layers = [layer]
    while layer and (depth is None or len(layers) <= depth):
        following: Layer = {}
        for boxes, players in layer.items():
            budget -= 1
            if budget < 0:
                break
            left = unseen[boxes]
            if left:
                walked = neighbours(players, columns) & left
                if walked:
                    unseen[boxes] = left ^ walked
                    following[boxes] = following.get(boxes, 0) | walked
            pulling = players & pullers[boxes]
            if not pulling:
                continue
            free = floor & ~boxes
            while pulling:
                player = pulling.bit_length() - 1
                pulling ^= 1 << player
                for offset in offsets:
                    if not boxes >> player + offset & 1:
                        continue
                    before = 1 << player - offset
                    if not free & before:
                        continue
                    pulled = boxes ^ (1 << player + offset | 1 << player)
                    if pulled not in unseen:
                        unseen[pulled] = floor & ~pulled
                        pullers[pulled] = _pullers(floor & ~pulled, pulled, columns)
                    if unseen[pulled] & before:
                        unseen[pulled] ^= before
                        following[pulled] = following.get(pulled, 0) | before
        if following:
            layers.append(following)
        if budget < 0:
            break
        layer = following
    return layers


def _pullers(free: Cells, boxes: Cells, columns: int) -> Cells:
    """Free cells with a box on one side and a free cell on the opposite one."""
    along_row = boxes >> 1 & free << 1 | boxes << 1 & free >> 1
    along_column = boxes >> columns & free << columns | boxes << columns & free >> columns
    return free & (along_row | along_column)


def draw_state(rng: Random, layer: Layer) -> tuple[Cells, Cell]:
    """A random state of a layer: boxes and player."""
    index = draw_index(rng, sum([players.bit_count() for players in layer.values()]))
    for boxes, players in layer.items():
        count = players.bit_count()
        if index < count:
            return boxes, nth_cell(players, index)
        index -= count
    raise AssertionError("a layer is never empty")


def generate(config: SokobanConfig, seed: int, split: Split) -> SokobanLevel:
    """The level of a seed in a split.

    The room alone decides the split, so splits share no room. The length of the shortest solution
    is uniform over those that the room offers within the limits.

    Raises:
        LevelError: None of many rooms offers a level.
    """
    rng = Random(seed)
    least, most = config.min_solution_length, config.max_solution_length
    for _ in range(MAX_CANDIDATES):
        room = draw_room(rng, config)
        if room is None or split_of(content_hash(room.content)) != split:
            continue
        layers = backward_layers(room, depth=most, budget=config.search_budget)
        if len(layers) > least:
            length = least + draw_index(rng, len(layers) - least)
            boxes, player = draw_state(rng, layers[length])
            return SokobanLevel.create(room, boxes, player, length)
    raise LevelError(
        f"Sokoban: none of {MAX_CANDIDATES} rooms of {config.dim_room} with {config.num_boxes} "
        f"boxes has a best solution of at least {least} moves in split {split!r}; lower "
        f"min_solution_length, or change dim_room, num_boxes, wall_density or search_budget"
    )
