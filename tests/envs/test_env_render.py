"""Pictures: what they show is the ground truth."""

import itertools

import numpy as np
import pytest
from env_cases import CASES, GRIDS, MODES

from vagen import envs

DRAWN = [name for name, mode in MODES if mode == "vision"]


def episode_pictures(env, seeds):
    """Every (state, picture) of the expert's episodes."""
    for seed in seeds:
        observation, info = env.reset(seed=seed)
        yield info["state"], observation["images"][0]
        over = False
        while not over:
            observation, _, terminated, truncated, info = env.step(env.expert_response())
            over = terminated or truncated
            yield info["state"], observation["images"][0]


@pytest.mark.parametrize("side", [32, 45])
@pytest.mark.parametrize("name", GRIDS)
def test_the_state_can_be_read_back_from_the_picture(name, side):
    env = envs.make(name, {"tile_size": side})
    for state, picture in episode_pictures(env, range(8)):
        rows, columns = state["size"]
        assert picture.shape == (rows * side, columns * side, 3) and picture.dtype == np.uint8
        codes = env._tiles.codes(picture)
        symbols = [[env.symbols[code] for code in row] for row in codes]
        player = [
            (r, c)
            for r, c in itertools.product(range(rows), range(columns))
            if symbols[r][c] in ("P", "S") or (name == "FrozenLake" and symbols[r][c] in "X√")
        ]
        assert player == [tuple(state["player"])]
        if name == "FrozenLake":
            marks = {"holes": "OX", "target": "G√"}
            state = {**state, "target": [state["target"]]}
        else:
            marks = {"boxes": "X√", "targets": "O√S", "walls": "#"}
        for key, shown in marks.items():
            seen = [[r, c] for r in range(rows) for c in range(columns) if symbols[r][c] in shown]
            assert seen == sorted(state[key])


@pytest.mark.parametrize("name", GRIDS)
def test_text_mode_shows_what_vision_mode_shows(name):
    vision, text = envs.make(name, {}), envs.make(name, {"render_mode": "text"})
    for seed in range(10):
        observation, _ = vision.reset(seed=seed)
        codes = vision._tiles.codes(observation["images"][0])
        grid = "\n".join(" ".join(vision.symbols[code] for code in row) for row in codes)
        assert grid in text.reset(seed=seed)[0]["text"]


@pytest.mark.parametrize("side", [32, 64])
@pytest.mark.parametrize("name", GRIDS)
def test_tiles_are_easy_to_tell_apart(name, side):
    tiles = envs.make(name, {"tile_size": side})._tiles.tiles.astype(float)
    for left, right in itertools.combinations(range(len(tiles)), 2):
        assert np.abs(tiles[left] - tiles[right]).mean() > 8


def test_a_small_lake_has_128_pixels_a_side():
    observation, _ = envs.make("FrozenLake", {}).reset(seed=0)
    assert observation["images"][0].shape == (128, 128, 3)


@pytest.mark.parametrize("name", DRAWN)
def test_frames_are_independent_of_one_another(name):
    env = envs.make(name, CASES[name].options)
    first, _ = env.reset(seed=0)
    kept = first["images"][0].copy()
    second, _ = env.reset(seed=0)
    second["images"][0][:] = 0
    assert np.array_equal(first["images"][0], kept)
    assert np.array_equal(env.reset(seed=0)[0]["images"][0], kept)


@pytest.mark.parametrize("name", DRAWN)
def test_gymnasium_render_returns_the_frame_of_the_observation(name):
    env = envs.get_environment(name).load()(CASES[name].options, render_mode="rgb_array")
    observation, _ = env.reset(seed=1)
    assert np.array_equal(env.render(), observation["images"][0])
    assert envs.make(name, {}).render() is None


def test_a_picture_of_something_else_is_not_read():
    env = envs.make("FrozenLake", {})
    with pytest.raises(ValueError, match="none of the tiles"):
        env._tiles.codes(np.zeros((64, 64, 3), np.uint8))


COLOURS = {
    "FrozenLake": {
        "_": ("pale blue", (205, 232, 250)),
        "O": ("black", (18, 20, 34)),
        "G": ("green", (26, 168, 60)),
        "P": ("orange", (255, 122, 0)),
    },
    "Sokoban": {
        "_": ("sand", (240, 226, 190)),
        "#": ("grey", (120, 126, 140)),
        "O": ("red", (225, 30, 50)),
        "X": ("brown", (190, 120, 50)),
        "√": ("green", (70, 200, 90)),
        "P": ("blue", (40, 96, 235)),
        "S": ("pink", (255, 190, 205)),
    },
}


@pytest.mark.parametrize("name", GRIDS)
def test_the_prompt_names_the_colours_that_are_drawn(name):
    env = envs.make(name, {})
    for symbol, (colour, meant) in COLOURS[name].items():
        assert colour in env.system_prompt()
        near = np.abs(env._tiles.tiles.astype(int) - meant).sum(-1) < 60
        share = near.mean((1, 2))  # of each tile
        assert share[env.symbols.index(symbol)] > 0.1
        if symbol != "_":
            assert share[0] == 0
