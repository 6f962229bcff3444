"""Sokoban: rules, levels with exact solution lengths, solver."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from vagen import envs
from vagen.envs.sokoban.game import ACTIONS, Room, Sokoban, SokobanConfig, SokobanLevel
from vagen.envs.sokoban.generator import backward_layers, generate
from vagen.envs.sokoban.level_file import LevelFile
from vagen.envs.sokoban.solver import SearchLimitReached, solve

STEPS = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}


def level_of(text, tmp_path):
    """A level drawn in Boxoban's symbols."""
    path = tmp_path / "level.txt"
    path.write_text(text)
    return LevelFile(path)._levels[0][1]


def slow_lengths(room, start_boxes, start_player):
    """Plain forward breadth-first search over positions: moves to each state reached."""
    columns = room.columns

    def free(cell):
        return room.floor >> cell & 1

    start = (frozenset(i for i in range(400) if start_boxes >> i & 1), start_player)
    lengths, queue = {start: 0}, deque([start])
    while queue:
        boxes, player = state = queue.popleft()
        for down, right in STEPS.values():
            ahead = player + down * columns + right
            beyond = ahead + down * columns + right
            moved = boxes
            if not free(ahead):
                continue
            if ahead in boxes:
                if not free(beyond) or beyond in boxes:
                    continue
                moved = boxes - {ahead} | {beyond}
            if (moved, ahead) not in lengths:
                lengths[moved, ahead] = lengths[state] + 1
                queue.append((moved, ahead))
    return lengths


def best_length(level):
    goal = frozenset(i for i in range(400) if level.room.targets >> i & 1)
    lengths = slow_lengths(level.room, level.boxes, level.player)
    return min((n for (boxes, _), n in lengths.items() if boxes == goal), default=None)


@pytest.mark.parametrize(
    ("options", "seeds"),
    [
        ({}, 150),
        ({"max_solution_length": 5}, 60),
        ({"dim_room": (6, 6), "num_boxes": 2, "min_solution_length": 6}, 12),
        ({"dim_room": (5, 8), "wall_density": 0.1}, 40),
    ],
)
def test_solution_lengths_of_levels_are_exact(options, seeds):
    config = SokobanConfig(**options)
    for seed in range(seeds):
        level = generate(config, seed, "train")
        length = level.optimal_length
        assert config.min_solution_length <= length <= (config.max_solution_length or 99)
        assert length == best_length(level)
        assert level.boxes.bit_count() == config.num_boxes == level.room.targets.bit_count()
        assert not level.boxes >> level.player & 1
        assert (level.boxes | 1 << level.player) & ~level.room.floor == 0


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6))
def test_two_independent_searches_agree_on_larger_levels(seed):
    level = generate(SokobanConfig(dim_room=(8, 8), num_boxes=2), seed, "train")
    moves = solve(level.room, level.boxes, level.player, budget=200_000)
    game = Sokoban(level)
    for move in moves:
        assert not game.solved
        game.move(move)
    assert game.solved and len(moves) == level.optimal_length


def test_lengths_stay_exact_when_the_budget_runs_out():
    config = SokobanConfig(dim_room=(7, 7), num_boxes=2, wall_density=0.1)
    room = generate(config, 5, "train").room
    every = backward_layers(room, depth=None, budget=10**9)
    length = {
        (boxes, player): n
        for n, layer in enumerate(every)
        for boxes, players in layer.items()
        for player in range(49)
        if players >> player & 1
    }
    for budget in (1, 30, 200):
        some = backward_layers(room, depth=None, budget=budget)
        assert len(some) < len(every)
        for n, layer in enumerate(some):
            for boxes, players in layer.items():
                for player in range(49):
                    assert not players >> player & 1 or length[boxes, player] == n


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.lists(st.sampled_from(range(4)), max_size=25))
def test_the_solver_is_optimal_from_wherever_play_led(seed, moves):
    level = generate(SokobanConfig(wall_density=0.1), seed, "train")
    game = Sokoban(level)
    for move in moves:
        game.move(move)
    here = SokobanLevel.create(level.room, game.boxes, game.player, None)
    expected = best_length(here)
    solution = solve(level.room, game.boxes, game.player, budget=10**5)
    assert len(solution) == (expected or 0)


def test_a_weighted_search_finds_a_solution_too():
    for seed in range(10):
        level = generate(SokobanConfig(dim_room=(8, 8), num_boxes=2), seed, "val")
        moves = solve(level.room, level.boxes, level.player, budget=200_000, weight=3)
        assert len(moves) >= level.optimal_length
        game = Sokoban(level)
        for move in moves:
            game.move(move)
        assert game.solved


def test_a_spent_budget_is_not_taken_for_unsolvable():
    level = generate(SokobanConfig(min_solution_length=8), 0, "train")
    with pytest.raises(SearchLimitReached):
        solve(level.room, level.boxes, level.player, budget=0)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.lists(st.sampled_from(range(4)), max_size=40))
def test_moves_follow_the_rules(seed, moves):
    level = generate(SokobanConfig(dim_room=(7, 7), num_boxes=2), seed, "train")
    game, columns = Sokoban(level), level.room.columns
    for move in moves:
        before = (game.boxes, game.player)
        step = level.room.offsets[move]
        down, right = STEPS[ACTIONS[move]]
        assert step == down * columns + right
        game.move(move)
        assert level.room.floor >> game.player & 1 and not game.boxes >> game.player & 1
        assert game.boxes & ~level.room.floor == 0 and game.boxes.bit_count() == 2
        if (game.boxes, game.player) == before:
            ahead, beyond = game.player + step, game.player + 2 * step
            wall = not level.room.floor >> ahead & 1
            stuck = game.boxes >> ahead & 1 and (
                game.boxes >> beyond & 1 or not level.room.floor >> beyond & 1
            )
            assert wall or stuck
        else:
            assert game.player == before[1] + step
            if game.boxes != before[0]:
                pushed = 1 << game.player | 1 << game.player + step
                assert game.boxes ^ before[0] == pushed


def started(text, tmp_path, **options):
    env = envs.make("Sokoban", {"render_mode": "text", "prompt_format": "no_think", **options})
    env.reset(seed=0)
    env._load_level(level_of(text, tmp_path), 0)
    env._state = env._read_state()
    return env


TWO_BOXES = """
########
#@$.   #
#      #
#   $. #
#      #
########
"""


def test_rewards_for_pushing_onto_and_off_a_target(tmp_path):
    env = started(TWO_BOXES, tmp_path)
    rewards = []
    for action in ("Right", "Down", "Up", "Right"):
        *_, info = env.step(f"<answer>{action}</answer>")
        rewards.append(round(info["rewards"]["env"], 6))
    assert rewards == [0.9, -0.1, -0.1, -1.1]
    assert not info["success"]


def test_solving_pays_the_box_and_the_bonus_and_terminates(tmp_path):
    env = started(TWO_BOXES, tmp_path, max_actions_per_step=10)
    *_, terminated, truncated, info = env.step("<answer>Right,Down,Down,Right,Right</answer>")
    assert (terminated, truncated, info["success"]) == (True, False, True)
    assert info["rewards"]["env"] == pytest.approx(5 * -0.1 + 2 + 10)


def test_an_action_is_effective_if_anything_in_the_state_changed(tmp_path):
    # The player ends where it began, but the box has moved.
    env = started(
        """
#######
#@$ . #
#     #
#######
""",
        tmp_path,
        max_actions_per_step=4,
    )
    *_, info = env.step("<answer>Right,Left</answer>")
    assert info["metrics"]["action_is_effective"]
    *_, info = env.step("<answer>Left,Up</answer>")
    assert info["metrics"] == {"action_is_valid": True, "action_is_effective": False}


def test_the_expert_answers_where_nothing_helps_any_more(tmp_path):
    env = started(
        """
######
#$ . #
#  @ #
######
""",
        tmp_path,
    )
    response = env.expert_response()
    *_, info = env.step(response)
    assert info["parsed"]["format_correct"] and info["metrics"]["action_is_effective"]


def test_state_positions_are_rows_and_columns_from_zero(tmp_path):
    env = started("######\n#@$. #\n#    #\n######\n", tmp_path)
    state = env.state()
    assert state["size"] == [4, 6]
    assert state["player"] == [1, 1] and state["boxes"] == [[1, 2]]
    assert state["targets"] == [[1, 3]] and [0, 0] in state["walls"]
    assert env.grid_text(state) == "# # # # # #\n# P X O _ #\n# _ _ _ _ #\n# # # # # #"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim_room": (3, 6)}, "4 to 20"),
        ({"num_boxes": 8}, "holds at most 7"),
        ({"min_solution_length": 5, "max_solution_length": 4}, "below min_solution_length"),
        ({"level_file": "x.txt", "max_solution_length": 4}, "not known"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        SokobanConfig(**options)


def test_rooms_are_connected():
    for seed in range(100):
        room = generate(SokobanConfig(wall_density=0.5), seed, "train").room
        assert isinstance(room, Room)
        seen, todo = set(), [room.floor.bit_length() - 1]
        while todo:
            cell = todo.pop()
            if room.floor >> cell & 1 and cell not in seen:
                seen.add(cell)
                todo += [cell + offset for offset in room.offsets]
        assert len(seen) == room.floor.bit_count()
