"""Level files: read, split, and refused with the file and the level named."""

import pytest
from env_cases import wins

from vagen import envs
from vagen.envs import distinct_levels
from vagen.envs.levels import SPLITS, LevelError
from vagen.envs.sokoban.env import SokobanConfig, SokobanEnv
from vagen.envs.sokoban.generator import generate
from vagen.envs.sokoban.level_file import LevelFile

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
    assert wins(envs.make("Sokoban", config), [3]) == 1


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


WRITTEN = {
    "comments": "; first\n{}; second\n",
    "title and author": "Title: One #1\nAuthor: Jörg\n\n{}Comment:\n# 2 * $\nComment-End:\n",
    "text around": "::::\nA collection of 1 level\n#1\n\nLevel 1\n{}\nSolution: R\n1\n",
    "windows": "{}",
    "byte order mark": "\ufeff{}",
    "minus": "{}",
    "underscore": "{}",
    "run lengths": "5#|#@$.#|5#\n",
    "run lengths of groups": "5#\n#@$.#\n#2(2(#))|\n",
    "letters": "#####\n#pbo#\n#####\n",
    "tabs": "{}",
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_level_is_the_same_however_its_file_is_written(tmp_path, kind):
    level = "##########\n#@$ ###  #\n#   .    #\n##########\n"
    if kind in ("run lengths", "run lengths of groups", "letters"):
        level = SOLVABLE
    (tmp_path / "plain.txt").write_text(level)
    changed = {
        "windows": level.replace("\n", "\r\n"),
        "minus": level.replace(" ", "-"),
        "underscore": level.replace(" ", "_"),
        "tabs": "".join(f"\t{line}\t\n" for line in level.splitlines()),
    }.get(kind, level)
    if kind == "tabs":
        (tmp_path / "plain.txt").write_text(
            "".join(f"{' ' * 8}{line}\n" for line in level.splitlines())
        )
    text = WRITTEN[kind].format(changed)
    (tmp_path / "other.sok").write_bytes(text.encode("latin-1" if "Jörg" in text else "utf-8"))
    plain, other = (LevelFile(tmp_path / name) for name in ("plain.txt", "other.sok"))
    assert len(plain) == len(other) == 1
    assert [level for _, level in plain._levels] == [level for _, level in other._levels]


def test_a_collection_of_large_levels_is_played(tmp_path):
    wide = "#" * 40 + "\n#@$" + "-" * 35 + ".#\n" + "#" * 40 + "\n"
    (tmp_path / "c.xsb").write_text(f"Set: mine\n\nTitle: a\n{wide}\nAuthor: me\n\n{SOLVABLE}")
    config = {"level_file": str(tmp_path / "c.xsb"), "render_mode": "text"}
    found = 0
    for split in SPLITS:
        env = envs.make("Sokoban", config, split)
        for seed in range(2):
            try:
                env.reset(seed=seed)
            except LevelError as error:
                assert "none of them in split" in str(error)
                continue
            found += 1
            *_, info = env.step(env.expert_response())
            assert info["state"]["size"] == [3, 40]
    assert found


def test_solved_boxes_outside_the_room_are_ornaments(tmp_path):
    (tmp_path / "a.xsb").write_text("#########\n#@$.##*##\n#########\n")
    (tmp_path / "b.xsb").write_text("#########\n#@$.#####\n#########\n")
    one, other = (LevelFile(tmp_path / f"{name}.xsb")._levels[0][1] for name in "ab")
    assert one == other


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
        (("#" * 51 + "\n") * 2, "2 x 51 cells; at most 50 x 50 .*leave the largest out"),
        ("#####\n#@$.#\n3\n", "not closed by walls"),
        ("# a list\n\n# $\n", "holds no level"),
        ("#####\n#@$.#7\n#####\n", "unknown character '7' in row 1, column 5"),
        ("9999(9999#)\n", "holds no level"),
        ("999(999(999#))\n", "holds no level"),
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
