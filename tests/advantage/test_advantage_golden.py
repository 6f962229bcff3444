"""Published reference results and a hand-worked example."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from vagen.advantage import ESTIMATORS, estimate_advantages

FOLDER = Path(__file__).parents[1] / "data" / "advantages"
META = json.loads((FOLDER / "cases.json").read_text())
NAMES = ["gae", "masked_gae", "bi_level_gae", "turn_wise_gae", "grpo", "masked_grpo", "masked_rloo"]


@pytest.fixture(scope="module")
def cases():
    with np.load(FOLDER / "cases.npz") as data:
        return {name: torch.from_numpy(data[name]) for name in data.files}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", range(len(META)))
def test_equals_the_reference_on_the_estimators_mask(cases, case, name):
    def load(key):
        return cases[f"case{case:02d}/{key}"]

    meta = META[case]
    advantages, returns = estimate_advantages(
        name,
        rewards=load("token_level_rewards"),
        values=load("values"),
        loss_mask=load("loss_mask"),
        turn_end_mask=load("end_of_response_mask"),
        attention_mask=load("attention_mask"),
        group_ids=torch.tensor(meta["group"]),
        gamma=meta["gamma"],
        lam=meta["lam"],
        high_level_gamma=meta["high_level_gamma"],
    )
    key = "attention_mask" if ESTIMATORS[name].mask == "attention" else "loss_mask"
    mask = load(key) != 0
    assert mask.any()
    assert (advantages - load(f"{name}/advantages"))[mask].abs().max() <= 1e-5
    assert (returns - load(f"{name}/returns"))[mask].abs().max() <= 1e-5


@pytest.mark.parametrize("name", ["masked_gae", "bi_level_gae"])
@pytest.mark.parametrize("case", range(len(META)))
def test_without_loss_mask_equals_the_reference_on_every_token(cases, case, name):
    """VAGEN's trainer whitens the whole tensor, so that an observation has the whitened 0."""

    def load(key):
        return cases[f"case{case:02d}/{key}"]

    attended = load("attention_mask")
    options = {key: META[case][key] for key in ("gamma", "lam", "high_level_gamma")}
    advantages, _ = estimate_advantages(
        name,
        rewards=load("token_level_rewards"),
        values=load("values"),
        loss_mask=load("loss_mask"),
        action_mask=attended,
        turn_end_mask=load("end_of_response_mask"),
        attention_mask=attended,
        **options,
    )
    between = (attended != 0) & (load("loss_mask") == 0)
    assert advantages[between].abs().min() > 0
    assert (advantages - load(f"{name}/advantages"))[attended != 0].abs().max() <= 1e-5


# One row: observation, turn of two tokens, observation, turn of two tokens, padding.
HAND = {
    "rewards": [[0, 0, 1, 0, 0, 3, 0.0]],
    "values": [[9, 1, 2, 7, 4, 1, 0.0]],
    "loss_mask": [[0, 1, 1, 0, 1, 1, 0]],
    "turn_end_mask": [[0, 0, 1, 0, 0, 1, 0]],
    "attention_mask": [[1, 1, 1, 1, 1, 1, 0]],
}


@pytest.mark.parametrize(
    ("name", "expected_advantages", "expected_returns"),
    [
        # gamma = 0.5, lam = 1; A + V is the discounted sum of what follows.
        ("masked_gae", [0, -0.125, -0.25, 0, -2.5, 2, 0], [0, 0.875, 1.75, 0, 1.5, 3, 0]),
        (
            "gae",
            [9.0 * -1 + 0.25 + 3 / 32, 0.5 + 3 / 16 - 1, 1 + 3 / 8 - 2, 0.75 - 7, -2.5, 2, 0],
            [0.25 + 3 / 32, 0.5 + 3 / 16, 1.375, 0.75, 1.5, 3, 0],
        ),
        # Per turn 0.9: T_2 = 3 - 1; T_1 = 1 + 0.9 * 3 - 2.
        ("turn_wise_gae", [0, 1.7, 1.7, 0, 2, 2, 0], [0, 0, 3.7, 0, 0, 3, 0]),
        ("bi_level_gae", [0, 0.85, 1.7, 0, -2.5, 2, 0], [0, 1.85, 3.7, 0, 1.5, 3, 0]),
        # From the end, .9 after a turn: 3 - 1; .5 - 4 + .5 * 2; 1 + .9 * 4 - 2 + .9 * -2.5.
        ("variable_clock_gae", [0, 0.175, 0.35, 0, -2.5, 2, 0], [0, 1.175, 2.35, 0, 1.5, 3, 0]),
        # Alone in its group, as where an environment failed in all others: nothing to compare with.
        ("masked_grpo", [0] * 7, [0] * 7),
        ("grpo", [0] * 7, [0] * 7),
        ("masked_rloo", [0] * 7, [0] * 7),
        ("rloo", [0] * 7, [0] * 7),
    ],
)
def test_two_turns_by_hand(name, expected_advantages, expected_returns):
    advantages, returns = estimate_advantages(
        name,
        **{key: torch.tensor(x) for key, x in HAND.items()},
        group_ids=["level"],
        gamma=0.5,
        lam=1.0,
        high_level_gamma=0.9,
        whiten=False,
    )
    assert advantages[0].tolist() == pytest.approx(expected_advantages, abs=1e-5)
    assert returns[0].tolist() == pytest.approx(expected_returns, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "lam", "expected"),
    [
        ("bi_level_gae", 0.5, [1.8, 0.8, -1, 2]),
        ("variable_clock_gae", 0.5, [3.15, 2.15, -1, 2]),
        # With lambda 1 between turns both are the discounted rewards to come, minus the value.
        ("bi_level_gae", 1.0, [2.7, 1.7, -1, 2]),
        ("variable_clock_gae", 1.0, [2.7, 1.7, -1, 2]),
    ],
)
def test_the_two_kinds_of_bi_level_gae_by_hand(name, lam, expected):
    """The example of docs/coming-from.md."""
    row = {key: torch.tensor(x) for key, x in HAND.items()}
    options = {"gamma": 1.0, "lam": 1.0, "high_level_gamma": 0.9, "high_level_lam": lam}
    found, _ = estimate_advantages(name, **row, **options, whiten=False)
    assert found[row["loss_mask"] != 0].tolist() == pytest.approx(expected)


def test_without_loss_mask_a_turn_begins_with_its_observation():
    """As in VAGEN's trainer: every token up to `e_k` has T_k, what follows the last one 0."""
    row = {key: torch.tensor(x) for key, x in HAND.items()}
    row["attention_mask"] = torch.ones(1, 7)
    found = estimate_advantages(
        "turn_wise_gae",
        **row,
        action_mask=torch.tensor([[0, 1, 1, 1, 1, 1, 1]]),
        lam=1.0,
        high_level_gamma=0.9,
        whiten=False,
    )
    assert found[0][0].tolist() == pytest.approx([0, 1.7, 1.7, 2, 2, 2, 0])
    assert found[1][0].tolist() == pytest.approx([0, 0, 3.7, 0, 0, 3, 0])


@pytest.mark.parametrize("name", ["grpo", "masked_grpo", "gigpo"])
def test_a_group_is_divided_by_the_deviation_before_kl(name):
    """Two of equal task scores have 0, whatever KL makes of them; of others it is part of `s`."""
    task = torch.tensor([[0.0, 1], [0, 1], [0, 0], [0, 4]]).double()
    kl = torch.tensor([[0.1, 0], [0, 0.3], [0.2, 0], [0, 0]]).double()
    sampled = torch.ones(4, 2)
    given = {
        "loss_mask": sampled,
        "attention_mask": sampled,
        "turn_end_mask": torch.tensor([[0, 1]] * 4),
        "anchor_ids": torch.arange(4)[:, None].expand(4, 2),
        "group_ids": ["a", "a", "b", "b"],
        "step_normalization": "mean_std",
    }
    found = estimate_advantages(name, rewards=task - kl, task_rewards=task, **given)[0]
    half = 4.2 / 2 / (8**0.5 + 1e-6)
    assert found[:, 0].tolist() == pytest.approx([0, 0, -half, half])
    noise = estimate_advantages(name, rewards=task - kl, **given)[0]
    assert noise[0].abs().min() > 0.7, "which is what KL alone would teach"
