"""Options without an effect, or with an unwanted one, are remarked on; others are not."""

from pathlib import Path

import pytest

from vagen.experiment.hints import hints
from vagen.experiment.load import load_experiment


@pytest.mark.parametrize(
    ("preset", "overrides", "words"),
    [
        ("vagen_base", [], ["(M^adv) changes whitening"]),
        ("vagen_base", ["algorithm.lam=0.95"], []),
        ("vagen_full", [], []),
        ("vagen_full_turn_lambda", [], []),
        ("vagen_full", ["algorithm.high_level_gamma=1.0"], ["is masked_gae"]),
        ("grpo_mask", [], []),
        (
            "grpo_mask",
            ["algorithm.adv_estimator=masked_grpo", "rollout_manager.use_loss_mask=false"],
            ["says nothing of observations"],
        ),
        ("vanilla_ppo", [], []),
        ("grpo_mask", ["algorithm.adv_estimator=remax"], []),
        (
            "grpo_mask",
            ["algorithm.adv_estimator=remax", "rollout_manager.use_multi_turn_reward=true"],
            ["remax with turn rewards"],
        ),
        (
            "vagen_full_turn_lambda",
            ["rollout_manager.turn_reward_budget=null"],
            ["winning in turn"],
        ),
    ],
)
def test_what_is_remarked_on(preset, overrides, words, tmp_path: Path) -> None:
    path = tmp_path / "lake.yaml"
    path.write_text(
        f"name: lake\npreset: {preset}\nenvs:\n  lake: {{env_name: FrozenLake}}\n"
        "rollout_manager: {turn_reward_budget: 3}\n"
    )
    found = list(hints(load_experiment(path, overrides)))
    assert len(found) == len(words)
    for text, part in zip(found, words, strict=True):
        assert part in text
