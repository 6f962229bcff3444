"""Random states and statements about them, written without the judge's own code."""

import json
from random import Random

PHRASES_ROW = {
    -1: ("above", "up", "north", "higher", "Over"),
    0: ("same row", "in the same row", "level with the player", "on the same level"),
    1: ("below", "down", "south", "lower", "underneath"),
}
PHRASES_COLUMN = {
    -1: ("left", "to the left", "west", "on the left"),
    0: ("same column", "in the same column", "vertically aligned"),
    1: ("right", "to the right", "east", "RIGHT"),
}
NOUNS = {
    "target": ("target", "goal", "Target", "flag"),
    "hole": ("hole", "pit", "Hole"),
    "box": ("box", "crate"),
}


def frozenlake_state(rng: Random, size: int = 4) -> dict:
    cells = _cells(rng, size, 2 + rng.randint(0, 4))
    return {
        "env_name": "FrozenLake",
        "size": [size, size],
        "player": cells[0],
        "target": cells[1],
        "holes": cells[2:],
    }


def sokoban_state(rng: Random, boxes: int) -> dict:
    cells = _cells(rng, 6, 1 + 2 * boxes + 3)
    return {
        "env_name": "Sokoban",
        "size": [6, 6],
        "player": cells[0],
        "boxes": cells[1 : 1 + boxes],
        "targets": cells[1 + boxes : 1 + 2 * boxes],
        "walls": cells[1 + 2 * boxes :],
    }


def random_state(rng: Random) -> dict:
    if rng.random() < 0.5:
        return frozenlake_state(rng, rng.choice((3, 4, 6)))
    return sokoban_state(rng, rng.choice((1, 1, 2, 3)))


def moved(rng: Random, state: dict) -> dict:
    """The state with its player somewhere else."""
    rows, columns = state["size"]
    places = [[r, c] for r in range(rows) for c in range(columns) if [r, c] != state["player"]]
    return {**state, "player": rng.choice(places)}


def things(state: dict) -> list[tuple[str, list[int]]]:
    """The objects of a full description, with their classes."""
    if state["env_name"] == "FrozenLake":
        return [("target", state["target"]), *(("hole", hole) for hole in state["holes"])]
    named = [("box", box) for box in state["boxes"]]
    return named + [("target", target) for target in state["targets"]]


def signs(state: dict, place: list[int]) -> tuple[int, int]:
    """Sign of row and column of `place` minus the player's."""
    rows, columns = (there - here for there, here in zip(place, state["player"], strict=True))
    return (rows > 0) - (rows < 0), (columns > 0) - (columns < 0)


def relations(state: dict) -> list[tuple[str, tuple[int, int]]]:
    return sorted((name, signs(state, place)) for name, place in things(state))


def sentence(rng: Random, name: str, sign: tuple[int, int]) -> str:
    noun = rng.choice(NOUNS[name])
    row, column = rng.choice(PHRASES_ROW[sign[0]]), rng.choice(PHRASES_COLUMN[sign[1]])
    turned_row = rng.choice(PHRASES_ROW[-sign[0]][:2])
    turned_column = rng.choice(PHRASES_COLUMN[-sign[1]][:2])
    return rng.choice(
        (
            f"{noun} is {row} and {column}",
            f"The {noun} is {column} and {row}",
            f"{noun}: {row}, {column}",
            f"the {noun} lies {column}, {row}",
            f"There is a {noun} {row} and {column}",
            f"{noun} is {row} , not {PHRASES_COLUMN[sign[1] or 1][0]} but {column}"
            if sign[1] == 0
            else f"{noun} is {row} and {column}",
            f"I am {turned_row} and {turned_column} of the {noun}"
            if 0 not in sign
            else f"{noun} {row} {column}",
        )
    )


def language(rng: Random, state: dict) -> str:
    parts = [sentence(rng, name, signs(state, place)) for name, place in things(state)]
    rng.shuffle(parts)
    return rng.choice((" . ", ". ", "; ", "\n")).join(parts)


def structured(rng: Random, state: dict) -> str:
    keys = ("player", "target", "holes", "boxes", "targets")
    items = [(key, state[key]) for key in keys if key in state]
    rng.shuffle(items)
    if rng.random() < 0.5:
        return json.dumps(dict(items))
    return str({key: _tuples(value) for key, value in items})


def symbolic(rng: Random, state: dict) -> str:
    rows, columns = state["size"]
    grid = [["_"] * columns for _ in range(rows)]

    def draw(places: list[list[int]], symbol: str) -> None:
        for row, column in places:
            grid[row][column] = symbol

    player, under = state["player"], "P"
    if state["env_name"] == "FrozenLake":
        draw(state["holes"], "O")
        draw([state["target"]], "G")
        under = {"O": "X", "G": "√"}.get(grid[player[0]][player[1]], "P")
    else:
        draw(state["walls"], "#")
        draw(state["targets"], "O")
        draw([box for box in state["boxes"] if box not in state["targets"]], "X")
        draw([box for box in state["boxes"] if box in state["targets"]], "√")
        under = "S" if player in state["targets"] else "P"
    draw([player], under)
    return "\n".join(rng.choice((" ", "")).join(row) for row in grid)


WRITERS = {"language": language, "structured": structured, "symbolic": symbolic}


def _tuples(value: list) -> object:
    return [tuple(item) for item in value] if value and isinstance(value[0], list) else tuple(value)


def _cells(rng: Random, size: int, count: int) -> list[list[int]]:
    return rng.sample([[r, c] for r in range(size) for c in range(size)], count)
