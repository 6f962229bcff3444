"""What rewards pay for: stalling where turns are paid, nothing but winning where episodes are."""

from pathlib import Path

import pytest

from vagen.cli.main import main
from vagen.config.base import ConfigError
from vagen.experiment.hints import stalling
from vagen.experiment.load import load_experiment
from vagen.learning.audit import audit
from vagen.service import environments_of
from vagen.stages.checks import check_start

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SUM = "rollout_manager.turn_reward_budget=null"
# Their scorer's weights are the user's to bring.
NAMES = sorted({path.stem for path in EXPERIMENTS.glob("*.yaml")} - {"svg-dreamsim-qwen25vl-3b"})
SIMULATED = ("navigation", "primitive-skill", "web")
LEVELS = {"household": 2, "svg": 2, "blackjack-tiny": 8}
"""Fewer of those whose episodes take seconds, more where luck decides."""
PLAYED = [name for name in NAMES if not name.startswith(SIMULATED)]


def audited(name, *words, levels=8):
    config = load_experiment(EXPERIMENTS / f"{name}.yaml", words)
    (found,) = audit(config, environments_of(), levels=levels)
    return found


def test_a_sum_over_turns_pays_an_expert_for_stalling():
    found = audited("frozenlake-tiny", SUM)
    expert, staller, loser, chance, constant, _ = found.rows
    assert expert.success == staller.success == 1.0 and loser.success == 0.0
    assert staller.turns > expert.turns + 1.5 and loser.turns == 5
    # Every text of theirs is right: .5 + .5 + .5 in each turn, 10 for the target.
    assert expert.total == pytest.approx(10 + 1.5 * expert.turns)
    assert staller.total == pytest.approx(10 + 1.5 * staller.turns)
    assert loser.total == pytest.approx(7.5)
    assert max(chance.discounted, constant.discounted) < expert.discounted < staller.discounted
    (problem,) = found.problems
    assert "frozenlake: the stalling expert" in problem


def test_a_budget_pays_every_episode_the_same_for_its_texts():
    found = audited("frozenlake-tiny")
    expert, staller, loser, *_ = found.rows
    assert expert.total == staller.total == pytest.approx(10 + 3 * 1.5)
    assert loser.total == pytest.approx(3 * 1.5)
    assert staller.discounted < expert.discounted
    assert not found.problems


def test_rows_come_as_they_are_played():
    config, seen = load_experiment(EXPERIMENTS / "frozenlake-tiny.yaml"), []
    audits = audit(
        config, environments_of(), levels=2, on_row=lambda name, row: seen.append((name, row))
    )
    (found,) = audits
    assert seen == [("frozenlake", row) for row in found.rows]


@pytest.mark.slow
def test_a_plan_that_looks_at_nothing_is_said_to_win():
    lake = "envs.frozenlake.env_config"
    easy = audited("frozenlake-tiny", f"{lake}.size=2", f"{lake}.p_frozen=1.0")
    assert easy.rows[-1].policy == "blind plan" and easy.rows[-1].success > 0.3
    (note,) = easy.notes
    assert "what is shown is not needed" in note and not easy.problems
    hard = audited("frozenlake-tiny", f"{lake}.size=8", f"{lake}.min_distance=5")
    assert hard.rows[-1].success <= 0.15 and not hard.notes


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted({n.partition("-qwen")[0] for n in PLAYED}))
def test_in_no_experiment_does_stalling_pay(task):
    played = []
    for name in [n for n in PLAYED if n.partition("-qwen")[0] == task]:
        config = load_experiment(EXPERIMENTS / f"{name}.yaml")
        assert not list(stalling(config))
        pays = (config.envs, config.judge, config.rollout_manager, config.algorithm)
        if pays not in played:  # another model changes nothing
            played.append(pays)
            assert not audited(name, levels=LEVELS.get(task, 4)).problems


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"{name}-tiny" for name in SIMULATED])
def test_nor_where_a_simulator_is_played(name):
    assert not audited(name, levels=2).problems


def test_the_build_says_so_or_refuses(make_run, capsys):
    words = ("envs.game.env_config.prompt_format=grounding", "judge.use_state_reward=true")
    (text,) = stalling(make_run(*words).experiment)
    assert "game: winning in turn" in text
    check_start(make_run(*words))
    with pytest.raises(ConfigError, match="turn_reward_budget"):
        check_start(make_run(*words, "rollout_manager.on_stalling=refuse"))
    check_start(
        make_run(
            *words, "rollout_manager.on_stalling=refuse", "rollout_manager.turn_reward_budget=3"
        )
    )


def test_the_command_prints_the_table(capsys):
    assert main(["judge", "audit", str(EXPERIMENTS / "frozenlake-tiny.yaml"), "--levels=2"]) == 0
    printed = capsys.readouterr().out
    assert "stalling expert" in printed and "no other policy earns as much" in printed
    assert main(["judge", "calibrate", "frozenlake-tiny"]) == 2
    assert "--out DIR" in capsys.readouterr().err
