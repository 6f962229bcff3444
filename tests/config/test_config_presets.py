"""Presets against the published tables, and each of them against the checks."""

from pathlib import Path

import pytest

from tools.docs.presets import BEGIN, END, render
from vagen.advantage import ESTIMATORS
from vagen.config import PRESETS, ExperimentConfig
from vagen.envs.parsing import tags_in
from vagen.envs.registry import parse_env_config
from vagen.experiment.load import load_experiment

# estimator, gamma per turn, loss mask, advantage mask, turn rewards, state reward,
# levels, trajectories, critic at turn ends
PAPER = {
    "vanilla_ppo": ("turn_wise_gae", 1.0, False, False, False, False, 128, 1, True),
    "token_ppo": ("gae", 1.0, False, False, False, False, 128, 1, False),
    "grpo_mask": ("grpo", 1.0, True, True, False, False, 16, 8, False),
    "grpo_mask_script": ("grpo", 1.0, True, True, False, False, 16, 8, False),
    "turn_ppo_mask": ("turn_wise_gae", 1.0, True, True, True, False, 64, 2, True),
    "turn_ppo_mask_script": ("turn_wise_gae", 1.0, True, True, True, False, 64, 2, True),
    "vagen_base": ("masked_gae", 1.0, True, True, False, False, 128, 1, False),
    "vagen_full": ("bi_level_gae", 0.95, True, True, True, True, 128, 1, False),
    "vagen_full_turn_lambda": ("bi_level_gae", 0.95, True, True, True, True, 128, 1, False),
}
RELEASE = {
    "rico_gae": ("gae", 0.95, False, False, False, False, 128, 1, False),
    "rico_grpo": ("grpo", 0.95, False, False, False, False, 16, 8, False),
    "rico_grpo_mask_loss": ("grpo", 0.95, True, False, False, False, 16, 8, False),
    "aico_no_loss_mask": ("masked_gae", 0.95, False, True, False, False, 128, 1, False),
    "aico_no_gae_mask": ("gae", 0.95, True, False, False, False, 128, 1, False),
    "aico": ("masked_gae", 0.95, True, True, False, False, 128, 1, False),
    "trico_no_turn_reward": ("bi_level_gae", 0.95, True, True, False, False, 128, 1, False),
    "trico_no_bi_level": ("masked_gae", 0.95, True, True, True, False, 128, 1, False),
    "trico_turn_wise": ("turn_wise_gae", 0.95, True, True, True, False, 128, 1, True),
    "trico_turn_wise_label": ("turn_wise_gae", 0.95, True, True, False, False, 128, 1, True),
    "trico": ("bi_level_gae", 0.95, True, True, True, False, 128, 1, False),
}


def load(name: str, folder: Path) -> ExperimentConfig:
    path = folder / "lake.yaml"
    path.write_text(f"name: lake\npreset: {name}\nenvs:\n  lake:\n    env_name: FrozenLake\n")
    return load_experiment(path)


@pytest.mark.parametrize(("name", "row"), [*PAPER.items(), *RELEASE.items()])
def test_a_preset_is_its_row_of_the_table(name: str, row: tuple, tmp_path: Path) -> None:
    config = load(name, tmp_path)
    manager = config.rollout_manager
    assert row == (
        config.algorithm.adv_estimator,
        config.algorithm.high_level_gamma,
        manager.use_loss_mask,
        manager.use_gae_mask,
        manager.use_multi_turn_reward,
        config.judge.use_state_reward,
        config.data.train_batch_size,
        manager.n_trajectory,
        config.critic.use_reward_mask,
    )
    assert (config.algorithm.gamma, config.algorithm.lam) == (1.0, 1.0)
    lam = config.algorithm.high_level_lam
    assert lam == (0.5 if name == "vagen_full_turn_lambda" else None)
    assert config.algorithm.kl_ctrl.kl_coef == 0.001
    assert config.actor_rollout_ref.actor.optim.lr == 1e-6
    assert config.critic.optim.lr == 1e-5
    assert manager.max_turns == 3
    budgets = (
        config.data.max_prompt_length,
        config.data.max_response_length,
        config.data.max_trajectory_length,
    )
    assert budgets == ((1024, 128, 1800) if name in RELEASE else (1024, 200, 2400))
    if name in PAPER:
        strategy = "free_think" if name.endswith("_script") else "grounding_worldmodeling"
        assert config.envs["lake"].env_config["prompt_format"] == strategy
    else:
        env_config = config.envs["lake"].env_config
        assert env_config["prompt_format"] == "free_think" and env_config["tags"]["answer"] == "ans"
    assert not config.algorithm.truncation_bootstrap
    assert config.judge.observation_weight == config.judge.prediction_weight == 0.5


def test_the_main_branch_is_as_its_sokoban_script_has_it(tmp_path: Path) -> None:
    """Its `train_bi_level_gae_sr_qwen25vl3b.sh`, `train_sokoban_vision_sr.yaml` and flags."""
    config = load("vagen_main", tmp_path)
    algorithm, manager, judge = config.algorithm, config.rollout_manager, config.judge
    assert (algorithm.adv_estimator, algorithm.bi_level_mix) == ("variable_clock_gae", 0.75)
    assert (algorithm.high_level_gamma, algorithm.high_level_lam) == (0.95, 0.95)
    assert (algorithm.gamma, algorithm.lam, algorithm.kl_ctrl.kl_coef) == (1.0, 1.0, 0.0)
    assert (judge.observation_weight, judge.prediction_weight) == (0.006, 0.006)
    assert judge.above_chance and manager.turn_reward_budget == manager.max_turns == 5
    actor = config.actor_rollout_ref.actor
    assert (actor.optim.lr, config.critic.optim.lr, actor.entropy_coeff) == (1e-6, 1e-5, 0.0)
    assert (config.data.train_batch_size, actor.ppo_mini_batch_size) == (128, 32)
    env = parse_env_config("FrozenLake", config.envs["lake"].env_config)
    assert (env.reward_values["format"], env.reward_values["success"]) == (0.02, 1.0)
    assert tags_in(env.layout, env.tags) == [
        f"<{end}{name}>"
        for name in ("perception", "reasoning", "prediction", "answer")
        for end in ("", "/")
    ]


# KL in the reward, upper clip, filter
STARPO = {"starpo": (0.001, 0.2, "none"), "starpo_s": (0.0, 0.28, "top_k")}


@pytest.mark.parametrize(("name", "row"), STARPO.items())
def test_starpo_is_as_ragen_has_it(name: str, row: tuple, tmp_path: Path) -> None:
    config = load(name, tmp_path)
    actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
    kept = algorithm.rollout_filter
    assert row == (algorithm.kl_ctrl.kl_coef, actor.clip_ratio_high, kept.strategy)
    assert (kept.value, kept.include_zero) == (0.25, False)
    assert (algorithm.adv_estimator, algorithm.gamma, algorithm.lam) == ("masked_gae", 1.0, 1.0)
    assert (config.data.train_batch_size, config.rollout_manager.n_trajectory) == (8, 16)
    assert (actor.clip_ratio_low, actor.entropy_coeff) == (0.2, 0.001)
    assert config.rollout_manager.max_turns == 5
    assert not config.rollout_manager.use_multi_turn_reward
    assert config.actor_rollout_ref.rollout.temperature == 1.0
    assert config.actor_rollout_ref.rollout.val_kwargs.temperature == 0.5
    env_config = config.envs["lake"].env_config
    assert (env_config["max_actions_per_step"], env_config["max_steps"]) == (5, 10)
    assert env_config["reward_overrides"] == {"format": 0.0, "format_penalty": -0.1}


GAMES = """\
name: games
preset: {preset}
envs:
  boxes: {{env_name: Sokoban}}
  cubes: {{env_name: PrimitiveSkill}}
  icons: {{env_name: SVG, env_config: {{prompt_format: free_think}}}}
"""


@pytest.mark.parametrize(
    ("preset", "env_id", "option", "value"),
    [
        ("vagen_full", "cubes", "prompt_format", "grounding_worldmodeling_structured"),
        ("vagen_full", "boxes", "prompt_format", "grounding_worldmodeling"),
        ("vagen_base", "cubes", "prompt_format", "grounding_worldmodeling"),
        ("trico", "boxes", "max_solution_length", 6),
        ("trico", "cubes", "max_actions_per_step", 2),
        ("starpo", "boxes", "max_actions_per_step", 5),
        ("starpo", "icons", "max_actions_per_step", 1),
    ],
)
def test_what_a_preset_says_of_one_environment(preset, env_id, option, value, tmp_path) -> None:
    path = tmp_path / "games.yaml"
    path.write_text(GAMES.format(preset=preset))
    overrides = [] if preset != "vagen_full" else ["judge.use_state_reward=false"]
    assert load_experiment(path, overrides).envs[env_id].env_config[option] == value


def test_the_tables_are_complete() -> None:
    assert set(PRESETS) == {*PAPER, *RELEASE, *STARPO, "vagen_main"}
    assert {preset.estimator for preset in PRESETS.values()} <= set(ESTIMATORS)


def test_a_preset_does_not_leak_into_the_next_use(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(
        "name: two\npreset: vagen_full\nenvs:\n  a:\n    env_name: FrozenLake\n"
        "    env_config: {prompt_format: worldmodeling}\n  b:\n    env_name: Sokoban\n"
    )
    envs = load_experiment(path).envs
    assert envs["a"].env_config["prompt_format"] == "worldmodeling"
    assert envs["b"].env_config["prompt_format"] == "grounding_worldmodeling"
    again = load_experiment(path, ["envs.a.env_config.prompt_format=grounding"]).envs
    assert again["b"].env_config["prompt_format"] == "grounding_worldmodeling"


def test_the_documented_table_is_that_of_the_presets() -> None:
    page = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
    table = page.partition(BEGIN)[2].partition(END)[0]
    assert table.strip() == render()
