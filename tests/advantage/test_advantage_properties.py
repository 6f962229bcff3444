"""What must hold for every batch."""

import pytest
import torch
from advantage_oracle import Batch, batches, fractions, oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from vagen.advantage import ESTIMATORS, estimate_advantages
from vagen.advantage.segments import Selection, reverse_linear_scan

CRITIC = [name for name, spec in ESTIMATORS.items() if spec.needs_critic]
MASKED = [name for name, spec in ESTIMATORS.items() if spec.mask == "loss"]
OPTIONS = {"gamma": 0.97, "lam": 0.9, "high_level_gamma": 0.9, "high_level_lam": 0.8}

few = settings(max_examples=40, deadline=None)
numbers = st.floats(-5, 5, allow_nan=False, width=32)


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ESTIMATORS)
@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    batch=batches(),
    gamma=fractions,
    lam=fractions,
    turn_gamma=fractions,
    turn_lam=fractions,
    whiten=st.booleans(),
)
def test_equals_plain_loops(name, data, batch, gamma, lam, turn_gamma, turn_lam, whiten):
    rows = len(batch.rewards)
    bootstrap = data.draw(st.none() | st.lists(numbers, min_size=rows, max_size=rows))
    advantages, returns = estimate_advantages(
        name,
        **batch.arguments(),
        gamma=gamma,
        lam=lam,
        high_level_gamma=turn_gamma,
        high_level_lam=turn_lam,
        bootstrap_values=None if bootstrap is None else torch.tensor(bootstrap).double(),
        whiten=whiten,
    )
    expected = oracle(
        name,
        batch,
        gamma=gamma,
        lam=lam,
        high_level_gamma=turn_gamma,
        high_level_lam=turn_lam,
        bootstrap=bootstrap,
        whiten=whiten,
    )
    close(advantages, expected[0])
    close(returns, expected[1])


@few
@given(batch=batches(turn_rewards_only=True), gamma=fractions, lam=fractions, whiten=st.booleans())
def test_bi_level_is_masked_gae_where_a_turn_and_its_tokens_count_alike(batch, gamma, lam, whiten):
    """Without discounts and at lambda 1; or, at any of both, with turns of one token."""
    single = batch.arguments() | {"turn_end_mask": batch.loss_mask}
    undiscounted = {"gamma": 1.0, "lam": 1.0, "high_level_gamma": 1.0}
    equal = {"gamma": gamma, "lam": lam, "high_level_gamma": gamma}
    for arguments, options in ((batch.arguments(), undiscounted), (single, equal)):
        two_level = estimate_advantages("bi_level_gae", **arguments, **options, whiten=whiten)
        one_level = estimate_advantages("masked_gae", **arguments, **options, whiten=whiten)
        close(two_level[0], one_level[0])
        close(two_level[1], one_level[1])


@few
@given(batch=batches(), gamma=fractions)
def test_with_lambda_one_the_return_is_the_discounted_reward_to_come(batch, gamma):
    _, returns = estimate_advantages("masked_gae", **batch.arguments(), gamma=gamma, lam=1.0)
    for b, row in enumerate(batch.rewards):
        where = batch.loss_mask[b].nonzero().flatten().tolist()
        for i, t in enumerate(where):
            expected = sum(gamma**k * float(row[u]) for k, u in enumerate(where[i:]))
            assert float(returns[b, t]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", CRITIC)
@few
@given(batch=batches())
def test_whitened_advantages_have_mean_zero_and_unit_variance(name, batch):
    advantages, returns = estimate_advantages(name, **batch.arguments(), **OPTIONS)
    raw, raw_returns = estimate_advantages(name, **batch.arguments(), **OPTIONS, whiten=False)
    close(returns, raw_returns)
    masks = {"attention": batch.attention_mask, "loss": batch.loss_mask}
    mask = batch.turn_end_mask if name == "turn_wise_gae" else masks[ESTIMATORS[name].mask]
    if mask.sum() > 1 and raw[mask].var() > 1e-3:
        assert advantages[mask].mean().abs() < 1e-9
        assert advantages[mask].var().sqrt() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("name", MASKED)
@few
@given(batch=batches(), junk=st.sampled_from([0.0, 1e6, float("nan"), float("inf")]))
def test_what_observation_tokens_hold_has_no_effect(name, batch, junk):
    before = estimate_advantages(name, **batch.arguments(), **OPTIONS)
    arguments = batch.arguments()
    for key in ("rewards", "values"):
        arguments[key] = torch.where(batch.loss_mask, arguments[key], junk)
    after = estimate_advantages(name, **arguments, **OPTIONS)
    close(after[0], before[0], 0.0)
    close(after[1], before[1], 0.0)


def widen(batch: Batch, columns: list[int], width: int) -> Batch:
    """Moves the batch's columns to `columns` of a wider one; new columns are observations."""

    def move(x: torch.Tensor, fill: float) -> torch.Tensor:
        out = torch.full((x.shape[0], width), fill, dtype=x.dtype)
        out[:, columns] = x
        return out

    return Batch(
        move(batch.rewards, 0.0),
        move(batch.values, 7.5),
        move(batch.loss_mask, False),
        move(batch.turn_end_mask, False),
        move(batch.attention_mask, True),
        batch.group_ids,
    )


@pytest.mark.parametrize("name", MASKED)
@few
@given(batch=batches(), data=st.data())
def test_more_observation_tokens_change_nothing(name, batch, data):
    width = batch.rewards.shape[1]
    gaps = data.draw(st.lists(st.integers(0, 3), min_size=width, max_size=width))
    columns, at = [], 0
    for gap in gaps:
        columns.append(at + gap)
        at += gap + 1
    wider = widen(batch, columns, at + 2)
    before = estimate_advantages(name, **batch.arguments(), **OPTIONS)
    after = estimate_advantages(name, **wider.arguments(), **OPTIONS)
    close(after[0][:, columns], before[0])
    close(after[1][:, columns], before[1])


@pytest.mark.parametrize("name", ESTIMATORS)
@few
@given(batch=batches(), left=st.integers(0, 3), right=st.integers(0, 3), copies=st.integers(0, 2))
def test_padding_columns_and_rows_change_nothing(name, batch, left, right, copies):
    """The copies carry real rewards and a real group: an empty attention mask takes them out."""

    def pad(x):
        if x.dim() == 1:
            return torch.cat([x, x[:1].repeat(copies)])
        grown = torch.nn.functional.pad(x, (left, right))
        extra = grown[:1].repeat(copies, 1)
        return torch.cat([grown, extra if x.dtype != torch.bool else torch.zeros_like(extra)])

    if name == "gae" and left:
        left = 0  # values of what comes later reach left padding, which is not attended
    padded = {key: pad(x) for key, x in batch.arguments().items()}
    rows, width = batch.rewards.shape
    before = estimate_advantages(name, **batch.arguments(), **OPTIONS)
    after = estimate_advantages(name, **padded, **OPTIONS)
    for x, y in zip(after, before, strict=True):
        close(x[:rows, left : left + width], y)
        assert not x[rows:].any()


@pytest.mark.parametrize("name", ESTIMATORS)
@few
@given(batch=batches(), data=st.data())
def test_the_order_of_rows_and_the_names_of_groups_do_not_matter(name, batch, data):
    order = data.draw(st.permutations(range(len(batch.rewards))))
    before = estimate_advantages(name, **batch.arguments(), **OPTIONS)
    arguments = {key: x[list(order)] for key, x in batch.arguments().items()}
    arguments["group_ids"] = [f"level-{int(g)}" for g in arguments["group_ids"]]
    after = estimate_advantages(name, **arguments, **OPTIONS)
    close(after[0], before[0][list(order)])
    close(after[1], before[1][list(order)])


@pytest.mark.parametrize("name", CRITIC)
@few
@given(batch=batches(), data=st.data())
def test_bootstrap_is_a_last_token_that_is_worth_its_value(name, batch, data):
    """A one-token turn whose reward equals its value has advantage 0 and passes its value on."""
    rows, width = batch.rewards.shape
    bootstrap = torch.tensor(
        data.draw(st.lists(numbers, min_size=rows, max_size=rows)), dtype=torch.float64
    )
    used = batch.loss_mask.any(1)
    longer = {
        key: torch.nn.functional.pad(x, (0, 1)) if x.dim() == 2 else x
        for key, x in batch.arguments().items()
    }
    for b in used.nonzero().flatten().tolist():
        end = int(batch.attention_mask[b].nonzero().max()) + 1
        longer["rewards"][b, end] = longer["values"][b, end] = bootstrap[b]
        for key in ("loss_mask", "turn_end_mask", "attention_mask"):
            longer[key][b, end] = True
    zero = torch.zeros(rows).double()
    options = {**OPTIONS, "whiten": False}
    cut = estimate_advantages(
        name, **batch.arguments(), **options, bootstrap_values=torch.where(used, bootstrap, zero)
    )
    whole = estimate_advantages(name, **longer, **options, bootstrap_values=zero)
    mask = batch.attention_mask if name == "gae" else batch.loss_mask
    close(cut[0], torch.where(mask, whole[0][:, :width], 0.0))
    close(cut[1], torch.where(mask, whole[1][:, :width], 0.0))


@few
@given(batch=batches(), junk=st.sampled_from([3.0, float("nan")]))
def test_gae_with_bootstrap_values_never_reads_padding(batch, junk):
    zero = torch.zeros(len(batch.rewards))
    before = estimate_advantages("gae", **batch.arguments(), **OPTIONS, bootstrap_values=zero)
    arguments = batch.arguments()
    for key in ("rewards", "values"):
        arguments[key] = torch.where(batch.attention_mask, arguments[key], junk)
    after = estimate_advantages("gae", **arguments, **OPTIONS, bootstrap_values=zero)
    close(after[0], before[0], 0.0)
    close(after[1], before[1], 0.0)


@few
@given(batch=batches(), shift=numbers)
def test_group_relative_advantages_ignore_a_common_bonus(batch, shift):
    """In groups of two or more, on rows that have a turn to carry the bonus."""
    rows = batch.loss_mask.any(1)
    arguments = {key: x[rows] for key, x in batch.arguments().items()}
    if not rows.any():
        return
    arguments["group_ids"] = torch.zeros(int(rows.sum()))
    if rows.sum() < 2:
        return
    more = dict(arguments)
    first = arguments["loss_mask"] & (arguments["loss_mask"].cumsum(1) == 1)
    more["rewards"] = arguments["rewards"] + shift * first
    for name in ("masked_rloo", "masked_grpo", "rloo", "grpo"):
        before = estimate_advantages(name, **arguments)[0]
        close(estimate_advantages(name, **more)[0], before, 1e-7)


@few
@given(
    pairs=st.lists(
        st.lists(st.tuples(numbers, st.floats(0, 1, width=32)), min_size=9, max_size=9),
        min_size=1,
        max_size=3,
    ),
    width=st.integers(0, 9),
)
def test_scan_equals_a_loop(pairs, width):
    table = torch.tensor(pairs).double()[:, :width]
    inputs, decay = table[..., 0], table[..., 1]
    expected, carry = torch.zeros_like(inputs), torch.zeros(len(pairs)).double()
    for s in reversed(range(width)):
        carry = inputs[:, s] + decay[:, s] * carry
        expected[:, s] = carry
    close(reverse_linear_scan(inputs, decay), expected, 1e-12)


@few
@given(batch=batches())
def test_selection_puts_back_what_it_took(batch):
    selection = Selection.of(batch.loss_mask)
    dense = selection.take(batch.values)
    assert dense.shape[1] == int(batch.loss_mask.sum(1).max())
    for b, row in enumerate(batch.values):
        picked = row[batch.loss_mask[b]]
        assert dense[b, : len(picked)].tolist() == picked.tolist()
        assert not dense[b, len(picked) :].any()
    close(selection.put(dense), torch.where(batch.loss_mask, batch.values, 0.0), 0.0)
