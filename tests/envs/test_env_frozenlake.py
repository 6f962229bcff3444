"""FrozenLake against Gymnasium's, and its levels."""

from random import Random

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from vagen import envs
from vagen.envs.frozenlake.game import (
    ACTIONS,
    FrozenLake,
    FrozenLakeConfig,
    FrozenLakeLevel,
    distances_to,
    neighbours,
    sample_level,
)


def oracle(level, is_slippery=False, success_rate=1 / 3):
    """Gymnasium's lake with the same cells; its transition table."""
    letters = ["F"] * level.size**2
    for cell in range(level.size**2):
        if level.holes >> cell & 1:
            letters[cell] = "H"
    letters[level.start], letters[level.target] = "S", "G"
    rows = ["".join(letters[i : i + level.size]) for i in range(0, len(letters), level.size)]
    env = gymnasium.make(
        "FrozenLake-v1", desc=rows, is_slippery=is_slippery, success_rate=success_rate
    )
    return env.unwrapped.P


@pytest.mark.parametrize("size", [4, 5, 8])
def test_moves_are_those_of_gymnasium(size):
    for seed in range(25):
        level = sample_level(FrozenLakeConfig(size=size), seed, "train")
        table = oracle(level)
        game = FrozenLake(level, slip=None, success_rate=1.0)
        rng = Random(seed)
        for _ in range(30):
            action = rng.randrange(4)
            (transition,) = table[game.player][action]
            _, cell, reward, over = transition
            game.move(action)
            assert game.player == cell
            assert game.at_target == (reward == 1) and (game.at_target or game.in_hole) == over
            if over:
                break


@pytest.mark.parametrize("success_rate", [1 / 3, 0.7])
def test_slips_have_the_probabilities_of_gymnasium(success_rate):
    level = sample_level(FrozenLakeConfig(), 3, "train")
    table = oracle(level, is_slippery=True, success_rate=success_rate)
    game = FrozenLake(level, slip=Random(0), success_rate=success_rate)
    draws = 6000
    for action in range(4):
        expected = np.zeros(level.size**2)
        for probability, cell, _, _ in table[level.start][action]:
            expected[cell] += probability
        counts = np.zeros(level.size**2)
        for _ in range(draws):
            game.player = level.start
            game.move(action)
            counts[game.player] += 1
        assert np.abs(counts / draws - expected).max() < 0.03


def test_slips_depend_on_the_seed_alone():
    config = {
        "is_slippery": True,
        "render_mode": "text",
        "prompt_format": "no_think",
        "p_frozen": 1.0,
        "size": 8,
        "min_distance": 8,
    }

    def path(seed, between=lambda: None):
        env = envs.make("FrozenLake", config)
        env.reset(seed=seed)
        cells = []
        for _ in range(12):
            between()
            *_, terminated, truncated, info = env.step("<answer>Down</answer>")
            cells.append(info["state"]["player"])
            if terminated or truncated:
                break
        return cells

    other = envs.make("FrozenLake", config)
    other.reset(seed=99)
    assert path(1) == path(1, between=lambda: (np.random.random(), other.np_random.random()))
    assert len({str(path(seed)) for seed in range(8)}) > 4


@given(st.integers(0, 10**6), st.integers(2, 8), st.floats(0.4, 1.0), st.integers(1, 3))
def test_levels_are_solvable_within_the_bounds(seed, size, p_frozen, least):
    least = min(least, size - 1)
    config = FrozenLakeConfig(
        size=size, p_frozen=p_frozen, min_distance=least, max_distance=least + size
    )
    level = sample_level(config, seed, "train")
    assert not (level.holes >> level.start | level.holes >> level.target) & 1
    game = FrozenLake(level, slip=None, success_rate=1.0)
    path = game.best_path(100)
    assert len(path) == level.distance and least <= level.distance <= least + size
    for action in path:
        assert not game.in_hole and not game.at_target
        game.move(action)
    assert game.at_target


def test_distances_agree_with_repeated_relaxation():
    rng = Random(1)
    for _ in range(50):
        size = 5
        holes = sum(1 << cell for cell in range(1, 25) if rng.random() < 0.3)
        expected = {0: 0}
        for _ in range(25):
            for cell, distance in list(expected.items()):
                for other in neighbours(size)[cell]:
                    if not holes >> other & 1:
                        expected[other] = min(expected.get(other, 99), distance + 1)
        found = distances_to(0, holes, size)
        assert found == [expected.get(cell, -1) for cell in range(25)]


def test_holes_have_about_the_configured_density():
    config = FrozenLakeConfig(size=8, p_frozen=0.8)
    holes = [sample_level(config, seed, "train").holes.bit_count() for seed in range(200)]
    assert np.mean(holes) / 64 == pytest.approx(0.19, abs=0.03)


def test_starts_and_targets_are_anywhere():
    levels = [sample_level(FrozenLakeConfig(), seed, "train") for seed in range(600)]
    assert len({level.start for level in levels}) == 16
    assert len({level.target for level in levels}) == 16


def test_falling_into_a_hole_terminates_without_success():
    env = envs.make("FrozenLake", {"render_mode": "text", "prompt_format": "no_think"})
    falls = 0
    for seed in range(60):
        _, info = env.reset(seed=seed)
        state = info["state"]
        row, column = state["player"]
        for action, (down, right) in zip(ACTIONS, [(0, -1), (1, 0), (0, 1), (-1, 0)], strict=True):
            if [row + down, column + right] in state["holes"]:
                _, reward, terminated, truncated, info = env.step(f"<answer>{action}</answer>")
                assert (reward, terminated, truncated) == (0.5, True, False)
                assert not info["success"] and "X" in env.grid_text(info["state"])
                falls += 1
                break
    assert falls > 10


def test_walking_into_the_border_is_not_effective():
    level = FrozenLakeLevel(4, 0, 0, 15, 6, "")
    env = envs.make("FrozenLake", {"render_mode": "text", "prompt_format": "no_think"})
    env.reset(seed=0)
    env._load_level(level, 0)
    env._state = env._read_state()
    *_, info = env.step("<answer>Left,Up</answer>")
    assert info["metrics"] == {"action_is_valid": True, "action_is_effective": False}


def test_crossed_bounds_are_refused():
    with pytest.raises(ValidationError, match="below min_distance"):
        FrozenLakeConfig(min_distance=4, max_distance=2)
