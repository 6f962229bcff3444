"""Whether success is in reach, found by playing."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from vagen.cli.main import main
from vagen.envs import parse_env_config
from vagen.envs.adapters.success import least
from vagen.experiment.load import load_experiment
from vagen.rollout.reach import out_of_reach, weak_experts
from vagen.service import environments_of

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
POLE = {
    "id": "CartPole-v1",
    "actions": {"left": 0, "right": 1},
    "prompt": "Keep the pole up.",
    "max_steps": 100,
    "prompt_format": "free_think",
}


def found(tmp_path: Path, env_name: str, env_config: dict[str, Any], turns: int) -> list[str]:
    tree = {
        "name": "own",
        "preset": "vagen_base",
        "envs": {"own": {"env_name": env_name, "env_config": env_config}},
        "rollout_manager": {"max_turns": turns},
        "judge": {"use_state_reward": False},
        "actor_rollout_ref": {"model": {"path": "some/model"}},
    }
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(tree))
    experiment = load_experiment(str(tmp_path / "own.yaml"))
    return list(out_of_reach(experiment, environments_of()))


@pytest.mark.parametrize("given", [1, 2, 3])
def test_an_expert_below_what_its_options_allow_is_named(tmp_path: Path, given: int) -> None:
    path = tmp_path / "own.yaml"
    options = f"{{max_actions_per_step: 3, expert_actions_per_turn: {given}}}"
    path.write_text(
        f"name: own\nenvs: {{lake: {{env_name: FrozenLake, env_config: {options}}}}}\n"
        "rollout_manager: {max_turns: 3}\n"
    )
    texts = list(weak_experts(load_experiment(path), environments_of()))
    assert len(texts) == (given == 1), "six actions are enough for these"
    assert all("lake.env_config.expert_actions_per_turn to 3" in text for text in texts)


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.yaml")), ids=lambda p: p.stem)
def test_no_expert_of_an_experiment_is_below_what_its_options_allow(path: Path) -> None:
    for spec in load_experiment(path).envs.values():
        options = parse_env_config(spec.env_name, spec.env_config)
        assert options.expert_actions_per_turn == options.max_actions_per_step


@pytest.mark.parametrize(
    ("success", "turns", "actions", "reached"),
    [
        ("return >= 100", 3, 1, False),
        ("return >= 100", 30, 4, True),
        ("return >= 3", 3, 1, True),
        ("steps > 5", 3, 1, False),
        ("terminated", 3, 1, True),
    ],
)
def test_what_the_actions_cannot_earn(tmp_path, success, turns, actions, reached) -> None:
    options = {**POLE, "success": success, "max_actions_per_step": actions}
    texts = found(tmp_path, "Gymnasium", options, turns)
    assert bool(texts) is not reached
    assert all("max_turns" in text and success in text for text in texts)


def test_an_expert_that_has_too_few_turns(tmp_path: Path) -> None:
    far = {"min_distance": 5, "max_actions_per_step": 1}
    assert "the expert wins none" in found(tmp_path, "FrozenLake", far, 3)[0]
    # As many actions as a turn may have count, not as many as an expert's turn has.
    assert not found(tmp_path, "FrozenLake", {**far, "max_actions_per_step": 4}, 3)


def test_least_reads_lower_bounds_alone() -> None:
    assert least("terminated and return >= 200 and steps < 40") == {"return": 200.0}
    assert least("not truncated and reward > 0 and steps > 7") == {"steps": 7.0}


@pytest.mark.slow
def test_plan_says_it(tmp_path: Path, monkeypatch, capsys) -> None:
    override = "envs.frozenlake.env_config.min_distance=6"
    assert main(["plan", "frozenlake-tiny", override, "rollout_manager.max_turns=3"]) == 0
    assert "success seems out of reach" in capsys.readouterr().out
