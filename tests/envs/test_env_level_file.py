"""Level files: read, split, and refused with the file and the level named."""

import pytest

from vagen import envs
from vagen.envs import distinct_levels
from vagen.envs.levels import SPLITS, LevelError
from vagen.envs.sokoban.config import SokobanConfig
from vagen.envs.sokoban.env import SokobanEnv
from vagen.envs.sokoban.generator import generate

SOLVABLE = "#####\n#@$.#\n#####\n"


def boxoban(level):
    """A generated level in Boxoban's symbols."""
    room, rows = level.room, []
    for row in range(room.rows):
        line = ""
        for cell in range(row * room.columns, (row + 1) * room.columns):
            target = room.targets >> cell & 1
            if not room.floor >> cell & 1:
                line += "#"
            elif level.boxes >> cell & 1:
                line += "*" if target else "$"
            elif cell == level.player:
                line += "+" if target else "@"
            else:
                line += "." if target else " "
        rows.append(line)
    return "\n".join(rows)


@pytest.fixture
def level_file(tmp_path):
    levels = [generate(SokobanConfig(min_solution_length=4), s, "train") for s in range(25)]
    levels += [generate(SokobanConfig(), s, "val") for s in range(5)]
    levels += [generate(SokobanConfig(), s, "test") for s in range(4)]
    path = tmp_path / "levels.txt"
    path.write_text("\n\n".join(f"; {n}\n{boxoban(level)}" for n, level in enumerate(levels)))
    return path, levels


def test_generated_levels_survive_the_file(level_file):
    path, levels = level_file
    config = {"level_file": str(path), "render_mode": "text"}
    for split, count in zip(SPLITS, (25, 5, 4), strict=True):
        refs = distinct_levels("Sokoban", config, split, count)
        start = {"train": 0, "val": 25, "test": 30}[split]
        written = [level.level_hash for level in levels[start : start + count]]
        assert sorted(ref.level_hash for ref in refs) == sorted(written)
    env = envs.make("Sokoban", config)
    env.reset(seed=3)
    over = False
    while not over:
        *_, terminated, truncated, info = env.step(env.expert_response())
        over = terminated or truncated
    assert info["success"]


def test_a_split_with_too_few_levels_says_how_many_there_are(level_file):
    path, _ = level_file
    with pytest.raises(LevelError, match="9 distinct levels wanted, but only 4 were found"):
        distinct_levels("Sokoban", {"level_file": str(path)}, "test", 9)


def test_levels_of_different_sizes_share_a_grid(tmp_path):
    path = tmp_path / "mixed.txt"
    path.write_text(SOLVABLE + "; 1\n#######\n#     #\n# @$. #\n#######\n")
    env = envs.make("Sokoban", {"level_file": str(path)})
    pictures = set()
    for split in SPLITS:
        try:
            observation, info = env.reset(seed=0, options={"split": split})
        except LevelError:
            continue
        pictures.add(observation["images"][0].shape)
        assert info["state"]["size"] == [4, 7]
    assert pictures == {(128, 224, 3)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no level"),
        ("#####\n#@$ #\n#####\n", r"level 0 \(line 1\): 1 boxes and 0 targets"),
        ("#####\n# $.#\n#####\n", "0 players"),
        ("#####\n#@@*#\n#####\n", "2 players"),
        ("#####\n#@x.#\n#####\n", "unknown character 'x' in row 1, column 2"),
        ("#####\n#@$.\n#####\n", "not closed by walls"),
        ("## ###\n#@ $.#\n######\n", "not closed by walls"),
        ("#######\n#@#$.##\n#######\n", "outside the player's room"),
        (
            SOLVABLE + "\n; bad\n####\n#@*#\n",
            r"level 1 \(line 6\): the player's room is not closed",
        ),
        ("#" * 21 + "\n", "at most 20 x 20"),
    ],
)
def test_malformed_files_are_refused_at_once(tmp_path, text, message):
    path = tmp_path / "bad.txt"
    path.write_text(text)
    with pytest.raises(LevelError, match=message) as caught:
        envs.make("Sokoban", {"level_file": str(path)})
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("######\n#$ @.#\n######\n", r"level 0 \(line 1\): this level cannot be solved"),
        ("; 7\n######\n#@ .$#\n#    #\n######\n", r"level 0 \(line 2\): .*cannot be solved"),
        ("########\n#@$ $..#\n########\n", r"level 0 \(line 1\): this level cannot be solved"),
        ("#####\n#@*##\n#####\n", "every box is on a target already"),
    ],
)
def test_an_unsolvable_level_is_refused_when_it_is_used(tmp_path, text, message):
    path = tmp_path / "bad.txt"
    path.write_text(text)
    env = envs.make("Sokoban", {"level_file": str(path)})
    problems = []
    for split in SPLITS:
        try:
            env.reset(seed=0, options={"split": split})
        except LevelError as error:
            problems.append(str(error))
    assert len(problems) == 3 and sum("none of them in split" in p for p in problems) == 2
    with pytest.raises(LevelError, match=message):
        raise LevelError(next(p for p in problems if "none of them" not in p))
    assert all(str(path) in problem for problem in problems)


def test_a_search_that_is_too_small_is_told_apart_from_unsolvable(tmp_path):
    level = generate(SokobanConfig(min_solution_length=10), 1, "train")
    path = tmp_path / "levels.txt"
    path.write_text(boxoban(level))
    config = SokobanConfig(level_file=str(path), search_budget=1)
    with pytest.raises(LevelError, match="no solution found in 1 states; raise search_budget"):
        SokobanEnv.sample_level(config, 0, "train")


def test_a_missing_or_unreadable_file_is_told(tmp_path):
    with pytest.raises(LevelError, match=r"nowhere.txt cannot be read: No such file"):
        envs.make("Sokoban", {"level_file": str(tmp_path / "nowhere.txt")})
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LevelError, match=r"binary.txt cannot be read"):
        envs.make("Sokoban", {"level_file": str(tmp_path / "binary.txt")})


def test_a_file_that_changes_is_read_again(tmp_path):
    path = tmp_path / "levels.txt"
    path.write_text(SOLVABLE)
    first = envs.make("Sokoban", {"level_file": str(path)})
    assert first._grid_size() == (3, 5)
    path.write_text("######\n#@ $.#\n######\n")
    assert envs.make("Sokoban", {"level_file": str(path)})._grid_size() == (3, 6)
