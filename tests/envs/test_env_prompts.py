"""Prompts: true of the game as configured, and their own examples play."""

import pytest
from env_cases import CASES, GRIDS, MODES, NAMES

from vagen import envs
from vagen.envs.frozenlake.env import FrozenLakeEnv
from vagen.envs.frozenlake.game import FrozenLake, FrozenLakeLevel
from vagen.envs.parsing import LAYOUTS
from vagen.envs.sokoban.env import SokobanEnv
from vagen.envs.sokoban.game import Room, Sokoban, SokobanLevel

FORMATS = sorted(LAYOUTS)


def formats(names=NAMES):
    """Environments with each prompt format that they can be asked in."""
    return [
        (name, prompt_format)
        for name in names
        for prompt_format in FORMATS
        if LAYOUTS[prompt_format].notation in envs.get_environment(name).config_class.notations
    ]


def cells(positions, columns):
    return sum(1 << row * columns + column for row, column in positions)


def game_at(env):
    """A game that starts in the state of the environment's example."""
    state = env.example_state
    rows, columns = state["size"]
    player = state["player"][0] * columns + state["player"][1]
    if isinstance(env, FrozenLakeEnv):
        target = state["target"][0] * columns + state["target"][1]
        level = FrozenLakeLevel(columns, cells(state["holes"], columns), player, target, 0, "")
        return FrozenLake(level, slip=None, success_rate=1.0)
    floor = (1 << rows * columns) - 1 & ~cells(state["walls"], columns)
    room = Room(rows, columns, floor, cells(state["targets"], columns))
    return Sokoban(SokobanLevel.create(room, cells(state["boxes"], columns), player, None))


@pytest.mark.parametrize(("name", "prompt_format"), formats())
def test_the_example_parses_and_says_the_state(name, prompt_format):
    env = envs.make(name, {**CASES[name].options, "prompt_format": prompt_format})
    example = env.example_response()
    assert example in env.system_prompt()
    parsed = env._parser.parse(example)
    assert parsed.format_correct
    assert parsed.actions == env.example_actions[: env.config.max_actions_per_step]
    if parsed.observation is not None:
        assert parsed.observation == env.state_text(env.example_state)
        assert env.config.layout.notation == "symbolic" or parsed.observation in env._state_rule()


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize(("name", "prompt_format"), formats(GRIDS))
def test_the_example_parses_and_is_legal_and_true(name, prompt_format, most):
    options = {"prompt_format": prompt_format, "max_actions_per_step": most}
    env = envs.make(name, options)
    example = env.example_response()
    assert example in env.system_prompt()
    parsed = env._parser.parse(example)
    assert parsed.format_correct and parsed.actions

    # Legality and truth are decided by the game itself.
    env.reset(seed=0)
    env._game = game_at(env)
    if name == "FrozenLake":
        env._target, env._holes = env.example_state["target"], env.example_state["holes"]
    else:
        env._walls, env._targets = env.example_state["walls"], env.example_state["targets"]
    assert env._read_state() == env.example_state
    if parsed.observation is not None:
        assert parsed.observation == env.state_text(env.example_state)
    for action in parsed.actions:
        before = env._read_state()
        env._move(action)
        assert env._read_state() != before
    if name == "FrozenLake":
        assert not env._game.in_hole
    if parsed.prediction is not None:
        assert parsed.prediction == env.state_text(env._read_state())


@pytest.mark.parametrize("detail", ["full", "brief"])
@pytest.mark.parametrize(("name", "prompt_format"), formats())
def test_prompts_have_no_doubled_braces_and_name_the_answer_tag(name, prompt_format, detail):
    for mode in CASES[name].modes:
        options = {"prompt_format": prompt_format, "render_mode": mode, "prompt_detail": detail}
        check_braces_and_tags(envs.make(name, {**CASES[name].options, **options}), detail)


def check_braces_and_tags(env, detail):
    observation, _ = env.reset(seed=0)
    for text in (env.system_prompt(), observation["text"], env.expert_response()):
        assert "{{" not in text and "}}" not in text
    if detail == "full":
        for text in (env.system_prompt(), observation["text"]):
            assert "<answer>...</answer>" in text
    assert "<image>" not in env.system_prompt()


@pytest.mark.parametrize("name", NAMES)
def test_the_turn_prompt_repeats_the_format_without_the_example(name):
    env = envs.make(name, {"prompt_format": "grounding_worldmodeling"})
    observation, _ = env.reset(seed=0)
    later, *_ = env.step(env.expert_response())
    for text in (observation["text"], later["text"]):
        assert "Write exactly: <think><observation>..." in text
        assert env.example_response() not in text


@pytest.mark.parametrize("name", NAMES)
def test_prompts_dictate_the_memory_section_where_there_is_one(name):
    env = envs.make(name, {"memory": True, "tags": {"memory": "view"}})
    said = env.system_prompt()
    assert "<view>keep or drop</view>" in said and "<view>: keep what you are shown" in said
    observation, _ = env.reset(seed=0)
    assert "<view>keep or drop</view>" in observation["text"]
    *_, info = env.step(env.expert_response())
    grid = name in GRIDS
    assert info["parsed"]["memory"] == ("drop" if grid else "keep"), "all is on a grid's picture"
    assert "<view>" not in envs.make(name, {}).system_prompt()


@pytest.mark.parametrize("name", NAMES)
def test_renamed_tags_reach_every_text(name):
    env = envs.make(name, {"tags": {"think": "plan", "answer": "act"}})
    observation, _ = env.reset(seed=0)
    for text in (env.system_prompt(), observation["text"], env.expert_response()):
        assert "<plan>" in text and "<act>" in text
        assert "<think>" not in text and "answer>" not in text


@pytest.mark.parametrize(("name", "mode"), MODES)
def test_brief_prompts_are_brief(name, mode):
    env = envs.make(name, {"prompt_detail": "brief", "render_mode": mode})
    words = [word for word in env.system_prompt().split() if word not in ".,:"]
    assert len(words) <= 25
    assert all(action in words for action in env.actions)
    observation, _ = env.reset(seed=0)
    assert observation["text"] == env._shown()[0]
    if mode == "vision":
        assert len(observation["text"].replace("<image>", "").split()) <= 5
    later, *_ = env.step(env.expert_response())
    assert later["text"] == env._shown()[0]


def test_only_a_slippery_lake_is_called_slippery():
    assert "slip" not in envs.make("FrozenLake", {}).system_prompt().lower()
    slippery = envs.make("FrozenLake", {"is_slippery": True, "success_rate": 0.7})
    assert "slippery" in slippery.system_prompt() and "0.70" in slippery.system_prompt()


@pytest.mark.parametrize("name", GRIDS)
def test_text_mode_explains_symbols_and_vision_mode_pictures(name):
    vision = envs.make(name, {}).system_prompt()
    text = envs.make(name, {"render_mode": "text"}).system_prompt()
    assert "picture" in vision and "picture" not in text
    assert envs.make(name, {}).symbol_legend() in text


@pytest.mark.parametrize("env_class", [FrozenLakeEnv, SokobanEnv])
def test_every_symbol_is_in_the_legend(env_class):
    named = [part.split()[0] for part in env_class.symbol_legend().split(", ")]
    assert sorted(named) == sorted(env_class.symbols)


def test_state_objects_choose_what_is_described():
    def described(**options):
        env = envs.make("FrozenLake", options)
        _, info = env.reset(seed=3)
        return env.state_text(info["state"]).split(" . "), len(info["state"]["holes"])

    full, holes = described()
    assert holes > 0 and len(full) == 1 + holes
    assert described(prompt_detail="brief")[0] == full[:1]
    assert described(prompt_detail="brief", state_objects="all")[0] == full
    assert described(state_objects="target")[0] == full[:1]


def test_near_speaks_of_holes_beside_the_player_alone():
    state = {
        "env_name": "FrozenLake",
        "size": [4, 4],
        "player": [1, 1],
        "target": [0, 0],
        "holes": [[0, 1], [1, 3], [2, 1], [2, 2]],
    }
    env = envs.make("FrozenLake", {"state_objects": "near"})
    assert env.state_text(state) == (
        "target is above and left . hole is above and same column . hole is below and same column"
    )
    assert "beside the player" in env.system_prompt()
    structured = envs.make(
        "FrozenLake", {"state_objects": "near", "prompt_format": "grounding_structured"}
    )
    assert '"holes": [[0, 1], [2, 1]]' in structured.state_text(state)
    assert "beside the player" not in envs.make("FrozenLake", {}).system_prompt()
