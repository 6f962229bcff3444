"""What every environment keeps to, whatever the game."""

import json
import re

import gymnasium
import numpy as np
import pytest
from env_cases import CASES, GRIDS, MODES, NAMES, episode
from gymnasium.utils.env_checker import check_env as gymnasium_check
from pydantic import ValidationError

from vagen import envs
from vagen.envs import check_env
from vagen.envs.turns import TurnEnv


def make(name, **options):
    """An environment of the fast set, with the options that keep its tests quick."""
    return envs.make(name, {**CASES[name].options, **options})


def test_every_environment_is_held_to_this_or_needs_a_simulator():
    others = set(envs.ENVIRONMENTS) - set(NAMES)
    assert all(envs.get_environment(name).load().needs_process for name in others)


def play(env, seed, responses=None, limit=200):
    """Observations and step results of an episode; the expert plays if no responses are given."""
    observation, info = env.reset(seed=seed)
    log = [(observation, info)]
    for turn in range(limit):
        if responses is not None and turn == len(responses):
            break
        response = env.expert_response() if responses is None else responses[turn]
        log.append(env.step(response))
        if log[-1][2] or log[-1][3]:
            break
    return log


@pytest.mark.parametrize("prompt_format", ["grounding_worldmodeling", "no_think", "wm"])
@pytest.mark.parametrize(("name", "mode"), MODES)
def test_every_environment_keeps_the_contract(name, mode, prompt_format):
    check_env(make(name, render_mode=mode, prompt_format=prompt_format, **CASES[name].several(2)))


def test_environments_with_chance_or_much_to_make_keep_the_contract():
    check_env(make("FrozenLake", is_slippery=True, render_mode="text"))
    check_env(make("Sokoban", dim_room=[7, 7], num_boxes=2, render_mode="text"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Navigation", {}),
        ("PrimitiveSkill", {"task": "StackThreeCube"}),
        ("PrimitiveSkill", {"task": "PutAppleInDrawer"}),
    ],
)
def test_environments_of_simulators_keep_the_contract(name, options):
    env = envs.make(name, {**options, "render_mode": "text"})
    check_env(env)
    gymnasium_check(env, skip_render_check=True)


@pytest.mark.parametrize(("name", "mode"), MODES)
def test_gymnasium_finds_nothing_to_complain_about(name, mode, recwarn):
    env = gymnasium.make(
        f"vagen/{name}-v0",
        render_mode="rgb_array",
        env_config={**CASES[name].options, "render_mode": mode},
    )
    gymnasium_check(env.unwrapped)
    observation, _ = env.reset(seed=3)
    assert env.observation_space.contains(observation)
    assert bool(observation["images"]) == (mode == "vision")
    observation, *_ = env.step(env.unwrapped.expert_response())
    assert env.observation_space.contains(observation)
    assert env.render().dtype == np.uint8
    assert [str(warning.message) for warning in recwarn] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_expert_is_not_asked_before_there_is_something_to_see(name):
    env = make(name, render_mode="text")
    for asked in (env.expert_response, env.expert_summary):
        with pytest.raises(gymnasium.error.ResetNeeded, match="call reset first"):
            asked()


@pytest.mark.parametrize("name", NAMES)
def test_the_expert_always_succeeds_and_its_texts_are_true(name):
    env = make(name, render_mode="text", prompt_format="grounding_worldmodeling")
    for seed in range(CASES[name].seeds):
        steps = [*episode(env, seed)]
        for before, (*_, info) in steps:
            assert info["state"]["env_name"] == name
            assert info["parsed"]["format_correct"] and info["metrics"]["action_is_effective"]
            assert info["parsed"]["observation"] == env.state_text(before)
            if CASES[name].predicts_all:
                assert info["parsed"]["prediction"] == env.state_text(info["state"])
        *_, terminated, truncated, info = steps[-1][1]
        assert (terminated, truncated) == (True, False)
        assert info["success"] or not CASES[name].is_certain


@pytest.mark.parametrize("name", NAMES)
def test_a_reset_without_a_seed_goes_on_from_the_seed_before(name):
    def hashes():
        env = make(name, render_mode="text")
        env.reset(seed=9)
        return [env.reset()[1]["level_hash"] for _ in range(5)]

    assert hashes() == hashes()
    assert len(set(hashes())) == 5


@pytest.mark.parametrize("name", NAMES)
def test_the_move_limit_truncates_and_does_not_terminate(name):
    case = CASES[name]
    env = make(name, render_mode="text", prompt_format="no_think", max_steps=case.limit)
    move = f"<answer>{case.idle}</answer>"
    for seed in range(100):
        log = play(env, seed, [move] * case.limit)
        if len(log) == case.limit + 1 and not log[-1][2]:  # the move did not end this game
            break
    ends = [step[2:4] for step in log[1:]]
    assert ends == [(False, False)] * (case.limit - 1) + [(False, True)]
    assert not log[-1][4]["success"]
    if env.config.max_actions_per_step < 3:
        return

    # A limit reached inside an answer cuts the rest of it.
    three = f"<answer>{case.idle},{case.idle},{case.idle}</answer>"
    longer = play(env, seed, [three] * 3)
    assert [step[2:4] for step in longer[1:]] == [(False, False), (False, True)]
    assert longer[-1][4]["state"] == log[-1][4]["state"]


@pytest.mark.parametrize("name", GRIDS)
def test_moves_after_the_end_of_the_game_are_not_carried_out(name):
    env = envs.make(name, {"render_mode": "text", "prompt_format": "no_think"})
    for seed in range(40):
        env.reset(seed=seed)
        first = env.expert_response()
        _, _, terminated, _, info = env.step(first)
        if terminated:
            state, reward = info["state"], info["rewards"]
            env.reset(seed=seed)
            back = {"Up": "Down", "Down": "Up", "Left": "Right", "Right": "Left"}
            action = info["parsed"]["actions"][0]
            *_, info = env.step(f"<answer>{action},{back[action]},{action}</answer>")
            assert (info["state"], info["rewards"], info["success"]) == (state, reward, True)
            return
    pytest.fail("no level of one move among the first seeds")


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_format_is_not_rewarded_and_does_not_move(name):
    env = make(name, render_mode="text", prompt_format="free_think")
    _, before = env.reset(seed=2)
    right = f"<think>x</think><answer>{CASES[name].idle}</answer>"
    assert env._parser.parse(right).format_correct
    _, reward, terminated, truncated, info = env.step(f"so: {right}")
    assert (reward, terminated, truncated) == (CASES[name].invalid, False, False)
    assert info["state"] == before["state"]
    assert info["metrics"] == {"action_is_valid": False, "action_is_effective": False}


@pytest.mark.parametrize("name", NAMES)
def test_an_invalid_action_costs_the_format_reward_but_those_before_it_count(name):
    env = make(name, render_mode="text", prompt_format="no_think", **CASES[name].several(1))
    if env.config.max_actions_per_step == 1:
        pytest.skip("an answer holds one action only")
    env.reset(seed=6)
    action = env.expert_response().removeprefix("<answer>").removesuffix("</answer>")
    *_, whole = env.step(f"<answer>{action}</answer>")
    env.reset(seed=6)
    *_, part = env.step(f"<answer>{action},Jump,{action}</answer>")
    assert part["state"] == whole["state"]
    assert part["rewards"] == {"env": whole["rewards"]["env"], "format": 0.0}
    assert part["metrics"] == {"action_is_valid": False, "action_is_effective": True}


@pytest.mark.parametrize(
    ("name", "preset", "format_reward", "success"),
    [
        ("FrozenLake", "vagen-legacy", 0.5, 10.0),
        ("FrozenLake", "vagen-new", 0.02, 1.0),
        ("Sokoban", "vagen-legacy", 0.5, 10.0),
        ("Sokoban", "vagen-new", 0.1, 1.0),
    ],
)
def test_reward_presets(name, preset, format_reward, success):
    env = envs.make(name, {"render_mode": "text", "reward": preset})
    *_, last = play(env, seed=8)
    extra = {"FrozenLake": 0.0, "Sokoban": 0.9 if preset == "vagen-legacy" else 0.0}[name]
    assert last[4]["rewards"]["format"] == format_reward
    assert last[4]["rewards"]["env"] == pytest.approx(success + extra)


@pytest.mark.parametrize("name", NAMES)
def test_reward_parts_can_be_overridden(name):
    env = make(name, render_mode="text", reward_overrides={"format": 2})
    first = play(env, seed=8)[1]
    assert first[4]["rewards"]["format"] == 2.0
    ragen = make(name, render_mode="text", reward_overrides={"format": 0, "format_penalty": -0.1})
    ragen.reset(seed=8)
    assert ragen.step("no layout")[4]["rewards"]["format"] == -0.1
    assert play(ragen, seed=8)[1][4]["rewards"]["format"] == 0.0
    with pytest.raises(ValidationError, match=r"no part 'bonus'.*format"):
        envs.make(name, {"reward_overrides": {"bonus": 1.0}})


@pytest.mark.parametrize(
    "bad",
    [
        {"rendermode": "text"},
        {"render_mode": "video"},
        {"prompt_format": "thinking"},
        {"tile_size": 16},
        {"expert_actions_per_turn": 4},
        {"action_sep": " "},
        {"action_sep": "x"},
        {"max_steps": 0},
        {"tags": {"thinks": "plan"}},
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_bad_options_are_refused(name, bad):
    with pytest.raises(ValidationError):
        envs.make(name, bad)


def test_unknown_names_are_refused_with_the_nearest_one():
    with pytest.raises(envs.UnknownEnvironmentError, match="did you mean 'FrozenLake'"):
        envs.make("frozen_lake", {})
    with pytest.raises(envs.LevelError, match="train, val, test"):
        envs.make("Sokoban", {}, split="dev")
    with pytest.raises(ValueError, match="only 'split' is known"):
        envs.make("Sokoban", {}).reset(seed=0, options={"level": 3})


@pytest.mark.parametrize("name", NAMES)
def test_the_config_digest_is_that_of_the_resolved_options(name):
    digest = envs.env_config_digest(name, {})
    assert digest == envs.env_config_digest(name, {"tags": {"think": "think"}})
    assert digest != envs.env_config_digest(name, {"max_steps": 33})
    paid = [part for part in envs.parse_env_config(name, {}).reward_values if part != "format"]
    parts = {"format": 1.0, paid[0]: -1.0}
    assert envs.env_config_digest(name, {"reward_overrides": parts}) == envs.env_config_digest(
        name, {"reward_overrides": dict(reversed(parts.items()))}
    )
    assert len({envs.env_config_digest(other, {}) for other in NAMES}) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_potential_rises_from_start_to_success(name):
    """Along the expert's path, by the share of the way that is done."""
    if not CASES[name].is_certain:
        pytest.skip("success is a matter of chance")
    env = make(name, max_actions_per_step=1, expert_actions_per_turn=1)
    for seed in range(5):
        log = play(env, seed)
        states = [log[0][1]["state"], *(step[4]["state"] for step in log[1:])]
        found = [env.potential(state, states[0]) for state in states]
        assert found[0] == 0.0 and found[-1] == 1.0
        if name == "Sokoban":
            expected = np.arange(len(states)) / (len(states) - 1)
            np.testing.assert_allclose(found, expected, atol=1e-9)
        for state in states:
            assert json.loads(json.dumps(state)) == state


def test_potential_is_never_negative_and_nothing_where_all_is_lost():
    lake = envs.get_environment("FrozenLake").load()
    start = {"player": [0, 0], "target": [0, 2], "holes": [[0, 1]]}
    assert lake.potential({**start, "player": [3, 0]}, start) == 0.0
    assert lake.potential({**start, "player": [0, 1]}, start) == 0.0
    assert lake.potential({**start, "player": [1, 2]}, start) == pytest.approx(0.5)
    room = envs.get_environment("Sokoban").load()
    start = room.example_state
    assert room.potential(start, start) == 0.0
    cornered = {**start, "boxes": [[1, 1]], "player": [2, 2]}
    assert room.distance(cornered) is None and room.potential(cornered, start) == 0.0
    assert room.potential({**start, "boxes": start["targets"]}, start) == 1.0


@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name].predicts_all])
def test_random_moves_of_the_expert_are_told_as_truly(name):
    kind = envs.get_environment(name).load()
    if not kind.actions and kind.any_action is TurnEnv.any_action:
        pytest.skip("its actions cannot be listed")
    env = make(name, expert_random_moves=0.5, prompt_format="grounding_worldmodeling")
    best = make(name, prompt_format="grounding_worldmodeling")
    told, differ = 0, 0
    for seed in range(12):
        env.reset(seed=seed)
        best.reset(seed=seed)
        expected = None
        for _ in range(6):
            response = env.expert_response()
            assert env.expert_response() == response
            observed, predicted = re.findall(r"<(?:observation|prediction)>(.*?)</", response)
            assert expected in (None, observed)
            told += expected is not None
            differ += response != best.expert_response()
            _, _, terminated, truncated, _ = env.step(response)
            best.step(response)
            if terminated or truncated:
                break
            expected = predicted
    assert told and differ
