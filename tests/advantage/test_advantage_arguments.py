"""What `estimate_advantages` accepts, returns and refuses."""

import pytest
import torch

from vagen.advantage import ESTIMATORS, AdvantageError, estimate_advantages, whiten


def arguments(**changes):
    base = {
        "rewards": torch.tensor([[0.0, 0, 1, 0], [0.0, 0, 2, 0]]),
        "values": torch.tensor([[0.5, 0.1, 0.2, 0], [0.0, 0.3, 0.4, 0]]),
        "loss_mask": torch.tensor([[0, 1, 1, 0], [0, 1, 1, 0]]),
        "turn_end_mask": torch.tensor([[0, 0, 1, 0], [0, 0, 1, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0]]),
        "group_ids": ["a", "a"],
        "anchor_ids": torch.tensor([[-1, -1, 3, -1], [-1, -1, 3, -1]]),
        "baselines": torch.tensor([0.5, 0.25]),
    }
    return {**base, **changes}


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_result_has_the_dtype_of_the_rewards_and_inputs_are_left_alone(name, dtype, expected):
    given = arguments()
    given["rewards"] = given["rewards"].to(dtype)
    given["values"] = given["values"].requires_grad_()
    copies = {k: v.clone() for k, v in given.items() if isinstance(v, torch.Tensor)}
    advantages, returns = estimate_advantages(name, **given)
    assert advantages.dtype == returns.dtype == expected
    assert advantages.shape == returns.shape == given["rewards"].shape
    assert not advantages.requires_grad and not returns.requires_grad
    for key, copy in copies.items():
        assert torch.equal(given[key], copy)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_the_dtype_cannot_hold_is_refused_and_nothing_else_overflows(name):
    """Rewards of 3e38 fit float32, the sum of three does not; what is normalised does."""
    given = arguments(group_ids=["a", "a"], step_normalization="mean")
    given["rewards"] = torch.tensor([[0.0, 3e38, 3e38, 0], [0.0, -3e38, -3e38, 0]])
    try:
        found = estimate_advantages(name, **given)
    except AdvantageError as refused:
        assert "too large for torch.float32; give smaller rewards (row 0, 1 of 2)" in str(refused)
        assert name not in ("grpo", "masked_grpo", "brpo")
    else:
        assert all(torch.isfinite(x).all() for x in found)
        assert name not in ("gigpo", "rloo", "masked_rloo", "arpo")


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_needs_only_what_its_spec_says(name):
    spec, given = ESTIMATORS[name], arguments()
    needs = {
        "values": spec.needs_critic,
        "turn_end_mask": spec.needs_turn_end,
        "group_ids": spec.group_based,
        "anchor_ids": spec.needs_anchors,
        "baselines": spec.needs_baselines,
    }
    expected = estimate_advantages(name, **given)
    without = {**given, **{key: None for key, needed in needs.items() if not needed}}
    for x, y in zip(estimate_advantages(name, **without)[:2], expected[:2], strict=True):
        assert torch.equal(x, y)
    for key, needed in needs.items():
        if needed:
            with pytest.raises(AdvantageError, match=f"{name} needs `{key}`"):
                estimate_advantages(name, **{**given, key: None})


def test_the_lambda_of_turns_defaults_to_that_of_tokens():
    given = arguments(
        turn_end_mask=torch.tensor([[0, 1, 1, 0], [0, 1, 1, 0]]), rewards=torch.rand(2, 4)
    )
    default = estimate_advantages("turn_wise_gae", **given, lam=0.5, whiten=False)[0]
    same = estimate_advantages("turn_wise_gae", **given, lam=0.5, high_level_lam=0.5, whiten=False)
    other = estimate_advantages("turn_wise_gae", **given, lam=0.5, high_level_lam=1.0, whiten=False)
    assert torch.equal(default, same[0])
    assert not torch.equal(default, other[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": torch.zeros(2, 5)}, r"values: shape \[2, 5\]; it must be \[2, 4\]"),
        ({"loss_mask": torch.zeros(4)}, r"loss_mask: shape \[4\]"),
        ({"rewards": torch.zeros(4)}, r"rewards: shape \[4\]"),
        ({"gamma": 1.5}, r"gamma = 1.5; it must be in \[0, 1\]"),
        ({"high_level_lam": -0.1}, r"high_level_lam = -0.1"),
        ({"lam": float("nan")}, r"lam = nan"),
        ({"group_ids": [1]}, r"group_ids has 1 entries for 2 rows"),
        ({"bootstrap_values": torch.zeros(3)}, r"bootstrap_values: shape \[3\]"),
        (
            {"bootstrap_values": torch.tensor([0.0, float("inf")])},
            r"bootstrap_values: not finite \(row 1",
        ),
        (
            {"attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])},
            r"loss_mask: sampled tokens at padding \(row 1 of 2\)",
        ),
        (
            {"turn_end_mask": torch.tensor([[0, 0, 1, 1], [0, 0, 1, 0]])},
            r"turn_end_mask: turn ends off the loss mask \(row 0",
        ),
        (
            {"turn_end_mask": torch.tensor([[0, 0, 1, 0], [0, 1, 0, 0]])},
            r"turn_end_mask: last sampled token ends no turn \(row 1",
        ),
        ({"trajectory_ids": ["a"]}, r"trajectory_ids has 1 entries for 2 rows"),
        (
            {"trajectory_ids": ["a", "a"], "group_ids": ["x", "y"]},
            r"group_ids: rows of one trajectory in several groups \(row 0 of 2",
        ),
        ({"turn_lams": torch.zeros(3, 1)}, r"turn_lams: shape \[3, 1\]; it must be \[K\] or \[2"),
        ({"turn_gammas": torch.tensor([1.5])}, r"turn_gammas: not in \[0, 1\] \(row 0, 1 of 2"),
        (
            {"turn_gammas": torch.zeros(2, 1), "trajectory_ids": ["a", "a"]},
            r"turn_gammas: given for 1 turns, the trajectory has more \(row 0, 1 of 2",
        ),
        ({"step_normalization": "std"}, r"step_normalization = 'std'; use mean or mean_std"),
        ({"step_gamma": 2.0}, r"step_gamma = 2.0"),
        (
            {"values": torch.tensor([[0, 0, 0, 0.0], [0, 0, float("nan"), 0]])},
            r"values: not finite \(row 1",
        ),
    ],
)
def test_bad_arguments_are_refused_with_the_place(changes, message):
    with pytest.raises(AdvantageError, match=message):
        estimate_advantages("adaptive_credit", **arguments(**changes))


def test_a_turn_without_a_state_is_refused_where_states_are_compared():
    anchors = torch.tensor([[-1, -1, 3, -1], [-1, 3, -1, -1]])
    with pytest.raises(AdvantageError, match=r"anchor_ids: turn without a state \(row 1 of 2"):
        estimate_advantages("gigpo", **arguments(anchor_ids=anchors))


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("shape", [(0, 4), (2, 0), (0, 0)])
def test_a_batch_of_nothing_gives_nothing(name, shape):
    empty = {
        key: torch.zeros(shape if x.dim() == 2 else shape[:1], dtype=x.dtype)
        for key, x in arguments(group_ids=torch.zeros(2)).items()
    }
    for x in estimate_advantages(name, **empty)[:2]:
        assert x.shape == shape


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(AdvantageError, match="did you mean `bi_level_gae`"):
        estimate_advantages("bilevel_gae", **arguments())
    with pytest.raises(AdvantageError, match="there is: adaptive_credit, arpo, bi_level_gae, brpo"):
        estimate_advantages("?", **arguments())
    with pytest.raises(AdvantageError, match="unknown argument `reward`; did you mean `rewards`"):
        estimate_advantages("gae", **arguments(), reward=torch.zeros(2, 4))


def test_what_every_estimator_needs_is_asked_for():
    given = arguments()
    del given["attention_mask"]
    with pytest.raises(AdvantageError, match="`attention_mask` is needed by every estimator"):
        estimate_advantages("grpo", **given)
    with pytest.raises(AdvantageError, match="`rewards` is needed by every estimator"):
        estimate_advantages("grpo", **arguments(rewards=None))


def test_gae_refuses_padding_that_it_would_read():
    values = arguments()["values"]
    values[0, 3] = float("nan")
    with pytest.raises(AdvantageError, match="values: not finite"):
        estimate_advantages("gae", **arguments(values=values))
    advantages, _ = estimate_advantages(
        "gae", **arguments(values=values), bootstrap_values=torch.zeros(2)
    )
    assert advantages.isfinite().all()


def test_whitening_of_one_token_only_takes_the_mean_off():
    x = torch.tensor([[3.0, 8.0]])
    assert whiten(x, torch.tensor([[True, False]])).tolist() == [[0.0, 0.0]]
    assert whiten(x, torch.tensor([[False, False]])).tolist() == [[0.0, 0.0]]
