"""Published reference results and a hand-worked example."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from vagen.advantage import ESTIMATORS, estimate_advantages

FOLDER = Path(__file__).parents[1] / "data" / "advantages"
META = json.loads((FOLDER / "cases.json").read_text())
NAMES = [
    "gae",
    "masked_gae",
    "bi_level_gae",
    "turn_wise_gae",
    "grpo",
    "masked_grpo",
    "masked_rloo",
]


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
        ("masked_grpo", [0, 4, 4, 0, 4, 4, 0], [0, 4, 4, 0, 4, 4, 0]),
        ("grpo", [4, 4, 4, 4, 4, 4, 0], [4, 4, 4, 4, 4, 4, 0]),
        ("masked_rloo", [0, 4, 4, 0, 4, 4, 0], [0, 4, 4, 0, 4, 4, 0]),
        ("rloo", [4, 4, 4, 4, 4, 4, 0], [4, 4, 4, 4, 4, 4, 0]),
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
