"""Slow, plain-loop estimators and random batches to compare the vectorised ones with."""

import math
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor


@dataclass
class Batch:
    rewards: Tensor
    values: Tensor
    loss_mask: Tensor
    turn_end_mask: Tensor
    attention_mask: Tensor
    group_ids: Tensor

    def arguments(self) -> dict[str, Tensor]:
        return dict(vars(self))


def _number(draw_zero: bool):
    number = st.floats(-5, 5, allow_nan=False, width=32)
    return st.one_of(st.just(0.0), number) if draw_zero else number


@st.composite
def batches(draw, *, max_rows: int = 5, turn_rewards_only: bool = False) -> Batch:
    """Ragged rows: one-token turns, single turns, no sampled token, zero rewards, groups of one."""
    layouts = draw(
        st.lists(
            st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=4),
            min_size=1,
            max_size=max_rows,
        )
    )
    pad = draw(st.integers(0, 3))
    width = max(1 + sum(o + n for o, n in row) for row in layouts) + pad
    shape = (len(layouts), width)
    rewards, values = torch.zeros(shape).double(), torch.zeros(shape).double()
    loss, ends, attended = (torch.zeros(shape, dtype=torch.bool) for _ in range(3))
    for b, row in enumerate(layouts):
        at = 1
        for observation, response in row:
            at += observation
            loss[b, at : at + response] = True
            at += response
            ends[b, at - 1] = True
        attended[b, :at] = True
        for t in range(at):
            values[b, t] = draw(_number(False))
            if ends[b, t] or (loss[b, t] and not turn_rewards_only):
                rewards[b, t] = draw(_number(True))
    groups = draw(st.lists(st.integers(0, 2), min_size=len(layouts), max_size=len(layouts)))
    return Batch(rewards, values, loss, ends, attended, torch.tensor(groups))


fractions = st.sampled_from([0.0, 0.3, 0.9, 0.95, 0.99, 1.0])


def _gae(rewards: list[float], values: list[float], after: float, g: float, lam: float):
    advantages, carry = [0.0] * len(rewards), 0.0
    for i in reversed(range(len(rewards))):
        following = values[i + 1] if i + 1 < len(values) else after
        carry = rewards[i] + g * following - values[i] + g * lam * carry
        advantages[i] = carry
    return advantages


def _whiten(x: Tensor, mask: Tensor, sample_mask: Tensor) -> Tensor:
    sample = [float(x[b, t]) for b, t in sample_mask.nonzero().tolist()]
    out = torch.zeros_like(x)
    if not sample:
        return out
    mean = math.fsum(sample) / len(sample)
    scale = 1.0
    if len(sample) > 1:
        variance = math.fsum((s - mean) ** 2 for s in sample) / (len(sample) - 1)
        scale = math.sqrt(variance + 1e-8)
    for b, t in mask.nonzero().tolist():
        out[b, t] = (float(x[b, t]) - mean) / scale
    return out


def oracle(
    name: str,
    batch: Batch,
    *,
    gamma: float,
    lam: float,
    high_level_gamma: float,
    high_level_lam: float,
    bootstrap: list[float] | None,
    whiten: bool,
) -> tuple[Tensor, Tensor]:
    rows, width = batch.rewards.shape
    raw, returns = torch.zeros(rows, width).double(), torch.zeros(rows, width).double()
    if name.removeprefix("masked_") in ("grpo", "rloo"):
        return _grouped(name, batch)

    for b in range(rows):
        r, v = batch.rewards[b].tolist(), batch.values[b].tolist()
        after = bootstrap[b] if bootstrap else 0.0
        if name == "gae":
            where = [t for t in range(width) if batch.attention_mask[b, t] or bootstrap is None]
        else:
            where = [t for t in range(width) if batch.loss_mask[b, t]]
        ends = [t for t in range(width) if batch.turn_end_mask[b, t]]

        if name in ("gae", "masked_gae"):
            result = _gae([r[t] for t in where], [v[t] for t in where], after, gamma, lam)
            for t, a in zip(where, result, strict=True):
                raw[b, t], returns[b, t] = a, a + v[t]
            continue

        turns = _gae(
            [r[t] for t in ends],
            [v[t] for t in ends],
            after,
            high_level_gamma,
            high_level_lam,
        )
        start = -1
        for end, advantage in zip(ends, turns, strict=True):
            mine = [t for t in where if start < t <= end]
            if name == "turn_wise_gae":
                for t in mine:
                    raw[b, t] = advantage
                returns[b, end] = advantage + v[end]
            else:
                # The reward at the end becomes the turn's return, and nothing follows it.
                inner = [r[t] for t in mine[:-1]] + [advantage + v[end]]
                result = _gae(inner, [v[t] for t in mine], 0.0, gamma, lam)
                for t, a in zip(mine, result, strict=True):
                    raw[b, t], returns[b, t] = a, a + v[t]
            start = end

    mask = batch.attention_mask if name == "gae" else batch.loss_mask
    if whiten:
        sample = batch.turn_end_mask if name == "turn_wise_gae" else mask
        raw = _whiten(raw, mask, sample)
    return torch.where(mask, raw, 0.0), torch.where(mask, returns, 0.0)


def _grouped(name: str, batch: Batch) -> tuple[Tensor, Tensor]:
    mask = batch.loss_mask if name.startswith("masked_") else batch.attention_mask
    scores = [
        math.fsum(float(x) for x, m in zip(r, keep, strict=True) if m)
        for r, keep in zip(batch.rewards, mask, strict=True)
    ]
    out = torch.zeros(mask.shape).double()
    for b, score in enumerate(scores):
        peers = [s for s, g in zip(scores, batch.group_ids, strict=True) if g == batch.group_ids[b]]
        n = len(peers)
        mean = math.fsum(peers) / n
        if name.endswith("rloo"):
            advantage = score if n == 1 else score - (math.fsum(peers) - score) / (n - 1)
        elif n == 1:
            advantage = score / (1 + 1e-6)
        else:
            std = math.sqrt(math.fsum((s - mean) ** 2 for s in peers) / (n - 1))
            advantage = (score - mean) / (std + 1e-6)
        out[b, mask[b]] = advantage
    return out, out.clone()
