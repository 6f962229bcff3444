"""Slow, plain-loop estimators and random batches to compare the vectorised ones with."""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from random import Random

import torch
from hypothesis import strategies as st
from torch import Tensor


@dataclass
class Batch:
    """Arguments of `estimate_advantages`."""

    rewards: Tensor
    values: Tensor
    loss_mask: Tensor
    turn_end_mask: Tensor
    attention_mask: Tensor
    group_ids: Tensor
    trajectory_ids: Tensor
    anchor_ids: Tensor
    baselines: Tensor
    action_mask: Tensor

    def arguments(self) -> dict[str, Tensor]:
        return dict(vars(self))


@dataclass
class Options:
    """What an estimator is told beside the batch."""

    gamma: float
    lam: float
    high_level_gamma: float
    high_level_lam: float
    whiten: bool
    bootstrap: list[float] | None = None
    """Per row."""
    turn_lams: list[list[float]] | None = None
    """Per row and turn."""
    turn_gammas: list[list[float]] | None = None
    bi_level_mix: float = 1.0
    step_advantage_weight: float = 1.0
    step_gamma: float = 0.95
    step_normalization: str = "mean"

    def arguments(self) -> dict:
        given = dict(vars(self))
        given["bootstrap_values"] = given.pop("bootstrap")
        for name in ("bootstrap_values", "turn_lams", "turn_gammas"):
            if given[name] is not None:
                given[name] = torch.tensor(given[name], dtype=torch.float64)
        return given


MAX_TURNS = 4
"""Of a row."""


@st.composite
def batches(
    draw, *, max_rows: int = 5, turn_rewards_only: bool = False, several: bool = False
) -> Batch:
    """Ragged rows: one-token turns, single turns, no sampled token, zero rewards, groups of one.

    With `several`, a trajectory may have several rows, which need not stand together, and rows
    may be padding. The policy loss may read tokens that were not sampled, those after the last turn
    too.
    """
    layouts = draw(
        st.lists(
            st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=MAX_TURNS),
            min_size=1,
            max_size=max_rows,
        )
    )
    pad = draw(st.integers(0, 3))
    # The layout is what fails; numbers are drawn at once, from a seed, some or all rewards 0.
    random = Random(draw(st.integers(0, 1000)))
    rewarded = draw(st.sampled_from([0.0, 0.6, 1.0]))
    width = max(1 + sum(o + n for o, n in row) for row in layouts) + pad
    count, shape = len(layouts), (len(layouts), width)
    rewards, values = torch.zeros(shape).double(), torch.zeros(shape).double()
    loss, ends, attended, actions = (torch.zeros(shape, dtype=torch.bool) for _ in range(4))
    unmasked = draw(st.sampled_from([0.0, 0.5, 1.0]))
    anchors = torch.full(shape, -1)
    for b, row in enumerate(layouts):
        at = 1
        for observation, response in row:
            at += observation
            loss[b, at : at + response] = True
            anchors[b, at : at + response] = random.randrange(3)
            at += response
            ends[b, at - 1] = True
        at += unmasked > 0 and at < width
        attended[b, :at] = not several or bool(row) or draw(st.booleans())
        for t in range(at):
            values[b, t] = random.uniform(-5, 5)
            actions[b, t] = loss[b, t] or (attended[b, t] and random.random() < unmasked)
            if ends[b, t] or (loss[b, t] and not turn_rewards_only):
                rewards[b, t] = random.uniform(-5, 5) * (random.random() < rewarded)
    lines = list(range(count))
    if several:
        lines = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    groups = draw(st.lists(st.integers(0, 2), min_size=max(lines) + 1, max_size=max(lines) + 1))
    baselines = [random.uniform(-5, 5) for _ in groups]
    return Batch(
        rewards,
        values,
        loss,
        ends,
        attended,
        torch.tensor([groups[line] for line in lines]),
        torch.tensor(lines),
        anchors,
        torch.tensor([baselines[line] for line in lines]).double(),
        actions,
    )


fractions = st.sampled_from([0.0, 0.3, 0.9, 0.95, 0.99, 1.0])


@dataclass
class Line:
    """A trajectory as a list of turns, each a list of (row, position)."""

    rows: list[int]
    turns: list[list[tuple[int, int]]] = field(default_factory=list)
    group: int = -1
    read: list[list[tuple[int, int]]] = field(default_factory=list)
    """Per turn, the tokens that the policy loss reads, those before its answer included."""

    @property
    def tokens(self) -> list[tuple[int, int]]:
        return [token for turn in self.turns for token in turn]


def lines_of(batch: Batch) -> list[Line]:
    """Trajectories that are not padding."""
    found: dict[int, Line] = {}
    pending: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for b, name in enumerate(batch.trajectory_ids.tolist()):
        if not batch.attention_mask[b].any():
            continue
        line = found.setdefault(name, Line([], [], int(batch.group_ids[b])))
        line.rows.append(b)
        turn: list[tuple[int, int]] = []
        for t in range(batch.loss_mask.shape[1]):
            if batch.loss_mask[b, t]:
                turn.append((b, t))
            if batch.action_mask[b, t]:
                pending[name].append((b, t))
            if batch.turn_end_mask[b, t]:
                line.turns.append(turn)
                line.read.append(pending.pop(name))
                turn = []
    return list(found.values())


def _sum_of_deltas(r: list[float], v: list[float], after: float, g: list[float], lam: list[float]):
    """GAE as the weighted sum of all later temporal differences, each computed from scratch.

    `g[i]` and `lam[i]` lead from entry i to the next.
    """
    n = len(r)
    advantages = []
    for i in range(n):
        total, weight = 0.0, 1.0
        for j in range(i, n):
            total += weight * (r[j] + g[j] * (v[j + 1] if j + 1 < n else after) - v[j])
            weight *= g[j] * lam[j]
        advantages.append(total)
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


UNMASKED = ("masked_gae", "turn_wise_gae", "bi_level_gae", "adaptive_credit", "variable_clock_gae")
"""Estimators that say something of every token that the policy loss reads."""


def oracle(name: str, batch: Batch, options: Options) -> tuple[Tensor, Tensor]:
    if name in ("grpo", "masked_grpo", "rloo", "masked_rloo", "brpo", "arpo", "gigpo"):
        return _scored(name, batch, options)
    raw = torch.zeros(batch.rewards.shape).double()
    returns = torch.zeros(batch.rewards.shape).double()
    if name == "gae":
        _every_position(batch, options, raw, returns)
    else:
        for line in lines_of(batch):
            _recursion(name, batch, options, line, raw, returns)
    learnt = batch.attention_mask if name == "gae" else batch.loss_mask
    mask = batch.action_mask if name in UNMASKED else learnt
    if options.whiten and name != "remax":
        raw = _whiten(raw, mask, batch.turn_end_mask if name == "turn_wise_gae" else learnt)
    return torch.where(mask, raw, 0.0), torch.where(learnt, returns, 0.0)


def _every_position(batch: Batch, options: Options, raw: Tensor, returns: Tensor) -> None:
    rows, width = batch.rewards.shape
    for b in range(rows):
        after = options.bootstrap[b] if options.bootstrap else 0.0
        where = [t for t in range(width) if batch.attention_mask[b, t] or not options.bootstrap]
        r, v = batch.rewards[b].tolist(), batch.values[b].tolist()
        n = len(where)
        result = _sum_of_deltas(
            [r[t] for t in where],
            [v[t] for t in where],
            after,
            [options.gamma] * n,
            [options.lam] * n,
        )
        for t, a in zip(where, result, strict=True):
            raw[b, t], returns[b, t] = a, a + v[t]


def _recursion(
    name: str, batch: Batch, options: Options, line: Line, raw: Tensor, returns: Tensor
) -> None:
    last_row = line.rows[-1]
    after = options.bootstrap[last_row] if options.bootstrap else 0.0
    tokens, turns = line.tokens, line.turns
    n, k = len(tokens), len(turns)

    def reward(token):
        return float(batch.rewards[token])

    def value(token):
        return float(batch.values[token])

    def gae(points, amounts, g, lam):
        return _sum_of_deltas(amounts, [value(p) for p in points], after, g, lam)

    if name in ("reinforce_plus_plus", "remax"):
        baseline = float(batch.baselines[last_row]) if name == "remax" else 0.0
        for i, token in enumerate(tokens):
            to_go = sum(options.gamma ** (j - i) * reward(tokens[j]) for j in range(i, n))
            raw[token], returns[token] = to_go - baseline, to_go
    elif name == "masked_gae":
        result = gae(tokens, [reward(t) for t in tokens], [options.gamma] * n, [options.lam] * n)
        for token, a in zip(tokens, result, strict=True):
            raw[token], returns[token] = a, a + value(token)
    elif name == "variable_clock_gae":
        ends = {turn[-1] for turn in turns}
        amounts = [reward(t) for t in tokens]
        inner, outer = (
            (options.gamma, options.lam),
            (options.high_level_gamma, options.high_level_lam),
        )
        clocks = [outer if t in ends else inner for t in tokens]
        found = gae(tokens, amounts, [g for g, _ in clocks], [lam for _, lam in clocks])
        plain = gae(tokens, amounts, [options.gamma] * n, [options.lam] * n)
        for token, a, b in zip(tokens, found, plain, strict=True):
            mixed = options.bi_level_mix * a + (1 - options.bi_level_mix) * b
            raw[token], returns[token] = mixed, mixed + value(token)
    elif name.startswith("no_concat_gae"):
        points = [turn[-1] if name.endswith("last") else turn[0] for turn in turns]
        amounts = [sum(reward(t) for t in turn) for turn in turns]
        result = gae(points, amounts, [options.gamma] * k, [options.lam] * k)
        for turn, point, a in zip(turns, points, result, strict=True):
            returns[point] = a + value(point)
            for token in turn:
                raw[token] = a
    else:
        g, lam = [options.high_level_gamma] * k, [options.high_level_lam] * k
        if name == "adaptive_credit" and options.turn_gammas is not None:
            g = options.turn_gammas[last_row][:k]
        if name == "adaptive_credit" and options.turn_lams is not None:
            lam = [*options.turn_lams[last_row][1:k], 0.0]
        ends = [turn[-1] for turn in turns]
        outer = gae(ends, [reward(e) for e in ends], g, lam)
        for turn, read, end, advantage in zip(turns, line.read, ends, outer, strict=True):
            if name == "turn_wise_gae":
                for token in read:
                    raw[token] = advantage
                returns[end] = advantage + value(end)
                continue
            # The reward at the end becomes the turn's return, and nothing follows it.
            inner = [reward(t) for t in turn[:-1]] + [advantage + value(end)]
            m = len(turn)
            values = [value(t) for t in turn]
            result = _sum_of_deltas(inner, values, 0.0, [options.gamma] * m, [options.lam] * m)
            for token, a in zip(turn, result, strict=True):
                raw[token], returns[token] = a, a + value(token)


def _normalized(x: float, peers: list[float], *, by_std: bool) -> float:
    n = len(peers)
    if n == 1:
        return 0.0
    mean = math.fsum(peers) / n
    if not by_std:
        return x - mean
    std = math.sqrt(math.fsum((p - mean) ** 2 for p in peers) / (n - 1))
    return (x - mean) / (std + 1e-6) if std > 1e-8 else 0.0


def _scored(name: str, batch: Batch, options: Options) -> tuple[Tensor, Tensor]:
    mask = batch.attention_mask if name in ("grpo", "rloo") else batch.loss_mask
    lines = lines_of(batch)
    scores = [
        math.fsum(float(batch.rewards[b, t]) for b in line.rows for t in mask[b].nonzero())
        for line in lines
    ]
    out = torch.zeros(mask.shape).double()
    for line, score in zip(lines, scores, strict=True):
        peers = [s for s, other in zip(scores, lines, strict=True) if other.group == line.group]
        if name.endswith("rloo"):
            n = len(peers)
            advantage = 0.0 if n == 1 else score - (math.fsum(peers) - score) / (n - 1)
        elif name == "brpo":
            advantage = _normalized(score, scores, by_std=True)
        elif name == "arpo":
            advantage = score
        else:
            by_std = name != "gigpo" or options.step_normalization == "mean_std"
            advantage = _normalized(score, peers, by_std=by_std)
        for b in line.rows:
            out[b, mask[b]] = advantage
    if name == "gigpo":
        for turn, _, advantage in step_oracle(batch, options):
            for token in turn:
                out[token] += options.step_advantage_weight * advantage
    return out, out.clone()


def step_oracle(batch: Batch, options: Options) -> list[tuple[list[tuple[int, int]], int, float]]:
    """Each turn with the size of its anchor group and its advantage within."""
    steps = []
    for line in lines_of(batch):
        amounts = [sum(float(batch.rewards[t]) for t in turn) for turn in line.turns]
        for k, turn in enumerate(line.turns):
            to_go = sum(options.step_gamma ** (j - k) * amounts[j] for j in range(k, len(amounts)))
            steps.append(((line.group, int(batch.anchor_ids[turn[-1]])), to_go, turn))
    found = []
    for key, to_go, turn in steps:
        peers = [other for peer, other, _ in steps if peer == key]
        by_std = options.step_normalization == "mean_std"
        found.append((turn, len(peers), _normalized(to_go, peers, by_std=by_std)))
    return found
