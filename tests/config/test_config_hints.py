"""Options without an effect are remarked on, those with one are not."""

from pathlib import Path

import pytest

from vagen.config.hints import no_ops
from vagen.config.load import load_experiment


@pytest.mark.parametrize(
    ("preset", "overrides", "words"),
    [
        ("vagen_base", [], ["(M^adv) changes whitening"]),
        ("vagen_base", ["algorithm.lam=0.95"], []),
        ("vagen_full", [], ["lambda 1 between turns"]),
        ("vagen_full", ["algorithm.high_level_lam=0.5"], []),
        ("vagen_full_turn_lambda", [], []),
        (
            "vagen_full",
            ["algorithm.high_level_gamma=1.0"],
            ["lambda 1 between turns", "is masked_gae"],
        ),
        ("grpo_mask", [], []),
        (
            "grpo_mask",
            ["algorithm.adv_estimator=masked_grpo", "rollout_manager.use_loss_mask=false"],
            ["says nothing of observations"],
        ),
        ("vanilla_ppo", [], ["lambda 1 between turns"]),
    ],
)
def test_what_changes_nothing_is_said(preset, overrides, words, tmp_path: Path) -> None:
    path = tmp_path / "lake.yaml"
    path.write_text(f"name: lake\npreset: {preset}\nenvs:\n  lake: {{env_name: FrozenLake}}\n")
    found = list(no_ops(load_experiment(path, overrides)))
    assert len(found) == len(words)
    for text, part in zip(found, words, strict=True):
        assert part in text
