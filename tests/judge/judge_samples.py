"""Random states and statements about them, written without the judge's own code."""

import functools
import json
from random import Random

from vagen.envs import parse_env_config
from vagen.judge import RuleJudge, rules_for

ROWS = {-1: "above", 0: "same row", 1: "below"}
COLUMNS = {-1: "left", 0: "same column", 1: "right"}
LAKE = {
    "env_name": "FrozenLake",
    "size": [4, 4],
    "player": [1, 1],
    "target": [3, 2],
    "holes": [[0, 1], [1, 0]],
}
SUFFIXES = {"language": "", "structured": "_structured", "symbolic": "_symbolic"}


@functools.cache
def grid_judge(name: str, form: str = "language", **options) -> RuleJudge:
    """A judge of a grid game as its prompt dictates a form."""
    prompt_format = f"grounding_worldmodeling{SUFFIXES[form]}"
    config = parse_env_config(name, {"prompt_format": prompt_format, **options})
    return RuleJudge(rules_for(name, config))


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


def language(rng: Random, state: dict) -> str:
    """Sentences in any order, with one of the joints, in some case."""
    parts = [
        f"{name} is {ROWS[row]} and {COLUMNS[column]}"
        for name, place in things(state)
        for row, column in [signs(state, place)]
    ]
    rng.shuffle(parts)
    text = rng.choice((" . ", ". ", "; ", "\n", ", ")).join(parts)
    return rng.choice((text, text.capitalize(), f"{text}."))


def structured(rng: Random, state: dict) -> str:
    keys = ("player", "target", "holes", "boxes", "targets")
    items = [(key, state[key]) for key in keys if key in state]
    rng.shuffle(items)
    return json.dumps(dict(items), indent=rng.choice((None, 1)))


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


def _cells(rng: Random, size: int, count: int) -> list[list[int]]:
    return rng.sample([[r, c] for r in range(size) for c in range(size)], count)
