"""Tests of the environment: `python -m pytest` in its folder."""

import pytest

from vagen.envs import check_env
from vagen.envs.template.corridor import CorridorEnv

OPTIONS = {"length": 16, "max_actions_per_step": 1}


@pytest.mark.parametrize("mode", ["vision", "text"])
def test_it_keeps_the_contract(mode):
    check_env(CorridorEnv({**OPTIONS, "render_mode": mode}))


def test_the_door_wins_and_the_wrong_way_does_not():
    env = CorridorEnv(OPTIONS)
    _, info = env.reset(seed=0)
    distance = info["state"]["door"] - info["state"]["player"]
    way, back = ("Right", "Left") if distance > 0 else ("Left", "Right")
    for moves in ([way] * abs(distance), [back] * abs(distance)):
        env.reset(seed=0)
        for move in moves:
            before = env.state()
            *_, info = env.step(env._write([move], before, env._after(before, [move])))
        assert info["success"] == (moves[0] == way)
        assert info["rewards"] == {"env": float(info["success"]), "format": 0.1}


def test_the_judge_tells_true_from_false():
    env = CorridorEnv(OPTIONS)
    true = env.truth({"player": 3, "door": 5}, env.config)
    for text, score in (("door is right", 1.0), ("door is left", 0.0)):
        said = env.read_claims(text, env.config)
        assert said is not None and env.score_claims(said, true, env.config) == score
    assert env.read_claims("the door is somewhere", env.config) is None
