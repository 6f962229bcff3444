"""How rows, trajectories and micro batches are averaged."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from vagen.config.schema import ActorConfig
from vagen.engines.objectives import (
    COVARYING,
    actor_denominator,
    actor_objective,
    count_trajectory_tokens,
    mark_covarying,
)
from vagen.learning import combine_metrics, entropy_from_logits
from vagen.rollout.types import TokenRow


def row(name: str, index: int, tokens: int) -> TokenRow:
    """A prompt token and so many sampled ones."""
    length = tokens + 1
    numbers = np.random.default_rng(sum(map(ord, name)) + index)
    names = ("logprobs", "old_logprobs", "ref_logprobs", "advantages", "entropy")
    return TokenRow(
        trajectory_id=name,
        row_index=index,
        input_ids=np.zeros(length, np.int32),
        loss_mask=np.arange(length) > 0,
        turn_index=np.zeros(length, np.int16),
        rollout_logprobs=np.zeros(length, np.float32),
        images=[],
        columns={name: numbers.normal(size=length).astype(np.float32) for name in names},
    )


def loss_of(rows: list[TokenRow], config: ActorConfig, *, micro: int) -> float:
    """The loss of a mini batch, in micro batches of so many rows."""
    denominator = actor_denominator(rows, action_mask=lambda r: r.loss_mask, config=config)
    total = 0.0
    for start in range(0, len(rows), micro):
        part = rows[start : start + micro]

        def column(name: str, part: list[TokenRow] = part) -> torch.Tensor:
            return torch.from_numpy(np.concatenate([r.columns[name][r.loss_mask] for r in part]))

        ids = np.repeat(np.arange(len(part)), [int(r.loss_mask.sum()) for r in part])
        loss, _ = actor_objective(
            column("logprobs"),
            column("entropy"),
            column,
            row_ids=torch.from_numpy(ids),
            denominator=denominator,
            config=config,
            entropy_coeff=config.entropy_coeff,
        )
        total += float(loss)
    return total


@pytest.mark.parametrize("average", ["token-sum", "token-mean"])
def test_a_trajectory_in_several_rows_counts_as_if_it_were_in_one(average):
    """And `seq-` does not: there a trajectory weighs as much as it has rows."""
    rows = [row("a", 0, 2), row("a", 1, 5), row("b", 0, 4)]
    joined = replace(
        rows[0],
        loss_mask=np.concatenate([rows[0].loss_mask, rows[1].loss_mask]),
        input_ids=np.zeros(9, np.int32),
        columns={
            name: np.concatenate([rows[0].columns[name], rows[1].columns[name]])
            for name in rows[0].columns
        },
    )
    sequence, trajectory = (
        ActorConfig.model_validate(
            {"loss_agg_mode": f"{unit}-mean-{average}", "use_kl_loss": True, "entropy_coeff": 0.1}
        )
        for unit in ("seq", "trajectory")
    )
    expected = loss_of([joined, rows[2]], sequence, micro=2)
    count_trajectory_tokens(rows, action_mask=lambda r: r.loss_mask)
    for micro in (1, 2, 3):
        assert loss_of(rows, trajectory, micro=micro) == pytest.approx(expected, rel=1e-5)
    assert abs(loss_of(rows, sequence, micro=3) - expected) > 1e-3


def test_the_bonus_pulls_every_distribution_towards_the_uniform_one():
    """Its gradient by a logit is minus the weight times -p (log p + H), a token's share of it."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 5, generator=generator).double().requires_grad_()
    logprobs, chosen = logits.log_softmax(-1), torch.tensor([0, 1, 2, 3, 4, 0])
    columns = {"old_logprobs": logprobs[range(6), chosen].detach(), "advantages": torch.zeros(6)}
    loss, metrics = actor_objective(
        logprobs[range(6), chosen],
        entropy_from_logits(logits),
        columns.__getitem__,
        row_ids=torch.tensor([0, 0, 0, 0, 1, 1]),
        denominator=torch.tensor(6.0),
        config=ActorConfig(entropy_coeff=7.0),  # only the first one if it is controlled
        entropy_coeff=0.3,
    )
    loss.backward()
    p = logprobs.detach().exp()
    entropy = -(p * p.log()).sum(-1, keepdim=True)
    torch.testing.assert_close(logits.grad, 0.3 / 6 * p * (p.log() + entropy))
    assert float(loss.detach()) == pytest.approx(-0.3 * float(entropy.mean()))
    assert combine_metrics([metrics])["entropy"] == pytest.approx(float(entropy.mean()))


@pytest.mark.parametrize(("of_turns", "of_rows"), [("gspo_turn", "gspo"), ("ppo_turn", "ppo_turn")])
def test_turns_are_told_apart_within_a_row_and_not_across_rows(of_turns, of_rows):
    """`gspo_turn` of rows with two turns each is `gspo` of a row per turn."""
    rows = [row("a", 0, 5), row("b", 0, 4)]
    for whole in rows:
        whole.turn_index[:] = np.arange(len(whole.turn_index)) > 3
        whole.columns["turn_index"] = whole.turn_index.astype(np.float32)
    turns = [cut(whole, k) for whole in rows for k in (0, 1)]
    by_turn, by_row = (
        ActorConfig.model_validate({"policy_loss": {"loss_mode": mode}, "clip_ratio_low": 0.05})
        for mode in (of_turns, of_rows)
    )
    expected = loss_of(turns, by_row, micro=4)
    assert loss_of(rows, by_turn, micro=2) == pytest.approx(expected, rel=1e-5)
    assert loss_of(rows, by_turn, micro=1) == pytest.approx(expected, rel=1e-5)
    if of_rows == "gspo":
        assert abs(loss_of(rows, by_row, micro=2) - expected) > 1e-3
    # `seq-mean-turn-sum` of them is the mean over turns, times the turns of a row.
    options = {"policy_loss": {"loss_mode": of_turns}, "use_kl_loss": True, "entropy_coeff": 0.1}
    summed, meant = (
        ActorConfig.model_validate({**options, "loss_agg_mode": f"seq-mean-{average}"})
        for average in ("turn-sum", "token-mean")
    )
    expected = 2 * loss_of(turns, meant, micro=4)
    assert loss_of(rows, summed, micro=2) == pytest.approx(expected, rel=1e-5)
    assert loss_of(rows, summed, micro=1) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("mode", ["clip_cov", "kl_cov"])
def test_tokens_that_covary_are_chosen_in_the_whole_mini_batch(mode):
    """By the log-probabilities before the update, so that its cut does not matter."""
    rows = [row("a", 0, 5), row("a", 1, 2), row("b", 0, 9)]
    options = {"loss_mode": mode, "clip_cov_ratio": 0.2, "kl_cov_ratio": 0.2, "clip_cov_lb": 0.1}
    config = ActorConfig.model_validate({"policy_loss": options})
    mark_covarying(
        rows,
        action_mask=lambda r: r.loss_mask,
        config=config.policy_loss,
        draws=np.random.default_rng(0),
    )
    chosen, old, advantages = (
        np.concatenate([r.columns[name][r.loss_mask] for r in rows])
        for name in (COVARYING, "old_logprobs", "advantages")
    )
    assert not any(r.columns[COVARYING][~r.loss_mask].any() for r in rows)
    products = (old - old.mean()) * (advantages - advantages.mean())
    if mode == "kl_cov":
        assert set(np.flatnonzero(chosen)) == set(np.argsort(products)[-3:])
    else:
        assert chosen.sum() == 3 and (products[chosen == 1] > 0.1).all()
    whole = loss_of(rows, config, micro=3)
    assert loss_of(rows, config, micro=1) == pytest.approx(whole, rel=1e-5)
    plain = config.model_copy(update={"policy_loss": ActorConfig().policy_loss})
    assert abs(loss_of(rows, plain, micro=3) - whole) > 1e-3


def cut(whole: TokenRow, turn: int) -> TokenRow:
    """One turn as a row of its own."""
    here = whole.turn_index == turn
    return replace(
        whole,
        loss_mask=whole.loss_mask[here],
        input_ids=whole.input_ids[here],
        columns={name: values[here] for name, values in whole.columns.items()},
    )
