"""A task of some turns in bare tokens, and small recurrent networks that play it.

A turn is five tokens: the state (one of eight), its status, then what the policy samples: a word,
an action, an end token. One action is right in each state, and a right turn earns. If turns are
dependent, an error persists: a turn earns if it and the one before it were right (the status says
whether it was), so that every action decides about the next turn's reward too. An earned turn pays
1, with noise if the task has it. In a sparse task one turn of the episode, unknown until the end,
is examined there, and pays for all. A judge pays .5 where the word names the state, a
placebo where it names that of another episode.

All seeds of an arm are trained side by side: their networks are stacked, their random numbers are
their own, the same ones for every arm.

Shape legend: S seeds, B episodes, K turns, T = 5 K tokens, H units, V tokens of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vagen.learning import entropy_from_logits

TURNS, TOKENS = 8, 5
STATES, STATUSES = 8, 2
BOUNDS = np.cumsum([0, STATES, STATUSES, STATES, STATES, 1]).tolist()
"""Vocabulary: states, statuses, words, actions, the end token; each place in a turn has its own."""
START = BOUNDS[-1]
"""What every episode begins with; not sampled."""
RIGHT = torch.tensor([3, 1, 4, 0, 5, 7, 2, 6])
"""The right action in each state."""
EPISODES, UNITS = 64, 32
JUDGE_WEIGHT = 0.5

Judge = Literal["none", "judge", "placebo"]


class Places(NamedTuple):
    """Where the tokens of a kind are in an episode; each bool [T]."""

    sampled: Tensor
    starts: Tensor
    """First sampled token of each turn: the word."""
    ends: Tensor


@cache
def places(turns: int) -> Places:
    """Of an episode of so many turns."""
    place = torch.arange(turns * TOKENS) % TOKENS
    return Places(place >= 2, place == 2, place == TOKENS - 1)


@dataclass(frozen=True)
class Task:
    """What an episode earns."""

    dependent: bool = False
    sparse: bool = False
    noise: float = 0.0
    """Standard deviation that a turn adds to the reward."""
    turns: int = 8

    def earned(self, right_BK: Tensor) -> Tensor:
        """Turns that earn, float32, of those that are right (bool); any leading shape."""
        right = right_BK.float()
        if not self.dependent:
            return right
        return right * torch.cat([torch.ones_like(right[..., :1]), right[..., :-1]], -1)

    def rewards(self, earned_BK: Tensor, luck: "Luck") -> Tensor:
        """The task's reward of each turn, [B, K]; any leading shape."""
        paid = earned_BK + self.noise * luck.noise
        if not self.sparse:
            return paid
        rewards = torch.zeros_like(paid)
        examined = earned_BK.gather(-1, luck.examined[..., None])[..., 0]
        rewards[..., -1] = self.turns * examined + self.noise * luck.noise.sum(-1)
        return rewards


class Networks(torch.nn.Module):
    """One GRU per seed, its parameters stacked along the first dimension."""

    def __init__(self, seeds: Sequence[int], outputs: int, *, zero_head: bool = False) -> None:
        super().__init__()

        def stacked(*shape: int, scale: float) -> torch.nn.Parameter:
            drawn = [torch.randn(shape, generator=source) * scale for source in sources]
            return torch.nn.Parameter(torch.stack(drawn))

        sources = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.inputs = stacked(START + 1, 3 * UNITS, scale=0.5)
        self.recurrent = stacked(UNITS, 3 * UNITS, scale=UNITS**-0.5)
        self.bias = stacked(1, 3 * UNITS, scale=0.0)
        self.head = stacked(UNITS, outputs, scale=0.0 if zero_head else UNITS**-0.5)

    def embedded(self, tokens: Tensor) -> Tensor:
        """[S, ..., 3H] what a token says to the gates."""
        count, size, width = self.inputs.shape
        offsets = torch.arange(count).view(-1, *[1] * (tokens.dim() - 1)) * size
        return functional.embedding(tokens + offsets, self.inputs.view(-1, width))

    def step(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """[S, B, H] state after one more token (Cho et al. 2014)."""
        gates = torch.baddbmm(self.bias, hidden, self.recurrent)
        mixed = torch.sigmoid(embedded[..., : 2 * UNITS] + gates[..., : 2 * UNITS])
        reset, keep = mixed.chunk(2, -1)
        new = torch.tanh(embedded[..., 2 * UNITS :] + reset * gates[..., 2 * UNITS :])
        return torch.lerp(new, hidden, keep)

    def states(self, tokens_SBT: Tensor) -> Tensor:
        """[S, B, T, H] state before each token."""
        before = functional.pad(tokens_SBT[..., :-1], (1, 0), value=START)
        hidden, states = self.inputs.new_zeros(*tokens_SBT.shape[:2], UNITS), []
        for embedded in self.embedded(before).unbind(2):
            hidden = self.step(hidden, embedded)
            states.append(hidden)
        return torch.stack(states, 2)

    def logits(self, states: Tensor, place: int) -> Tensor:
        """[S, N, tokens of that place in a turn], from states [S, N, H]."""
        return states @ self.head[:, :, BOUNDS[place] : BOUNDS[place + 1]]

    def logprobs(self, tokens_SBT: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of each token among those of its place, and their entropy; [S, B, T]."""
        count = len(tokens_SBT)
        turns = tokens_SBT.shape[-1] // TOKENS
        states = self.states(tokens_SBT).view(count, -1, turns, TOKENS, UNITS)
        tokens = tokens_SBT.view(count, -1, turns, TOKENS)
        found, entropies = [], []
        for place in range(TOKENS):
            logits = self.logits(states[..., place, :].reshape(count, -1, UNITS), place)
            chosen = (tokens[..., place] - BOUNDS[place]).reshape(count, -1, 1)
            found.append(logits.log_softmax(-1).gather(-1, chosen).view(count, -1, turns))
            entropies.append(entropy_from_logits(logits).view(count, -1, turns))
        return (
            torch.stack(found, -1).view(tokens_SBT.shape),
            torch.stack(entropies, -1).view(tokens_SBT.shape),
        )

    def values(self, tokens_SBT: Tensor) -> Tensor:
        """[S, B, T] value before each token."""
        return torch.einsum("sbth,sho->sbt", self.states(tokens_SBT), self.head)


class Luck(NamedTuple):
    """The random numbers of an iteration, the same for every arm."""

    states: Tensor
    """int64 [S, B, K], the levels."""
    statuses: Tensor
    """int64 [S, B, K], read where turns are independent: they say nothing."""
    uniforms: Tensor
    """[S, B, T]"""
    noise: Tensor
    """[S, B, K]"""
    examined: Tensor
    """int64 [S, B], a turn."""
    orders: Tensor
    """int64 [S, 2, B], of the actor's and the critic's mini batches."""


def draw(
    seeds: Sequence[int],
    iteration: int,
    group: int = 1,
    episodes: int = EPISODES,
    turns: int = TURNS,
) -> Luck:
    """Draws them; `group` episodes in a row are of one level."""
    rows = []
    for seed in seeds:
        source = torch.Generator().manual_seed(1_000_003 * (seed + 1) + iteration)
        levels = torch.rand(2, episodes, turns, generator=source)
        levels = levels[:, : episodes // group].repeat_interleave(group, 1)
        uniforms = torch.rand(episodes, turns * TOKENS, generator=source)
        noise = torch.randn(episodes, turns, generator=source)
        orders = torch.stack([torch.randperm(episodes, generator=source) for _ in range(2)])
        examined = torch.randint(turns, (episodes,), generator=source)
        sizes = torch.tensor([STATES, STATUSES])[:, None, None]
        rows.append((*(levels * sizes).long(), uniforms, noise, examined, orders))
    return Luck(*(torch.stack(column) for column in zip(*rows, strict=True)))


class Episodes(NamedTuple):
    """What was played."""

    tokens: Tensor
    """int64 [S, B, T]"""
    logprobs: Tensor
    """[S, B, T] of the sampled tokens, 0 elsewhere."""
    earned: Tensor
    """[S, B, K], 1 where a turn earns."""
    rewards: Tensor
    """[S, B, K], the task's."""
    judged: Tensor
    """[S, B, K], the judge's."""
    anchors: Tensor
    """int64 [S, B, K], the state and status that a turn starts from."""

    @property
    def scores(self) -> Tensor:
        """[S, B] all that an episode is paid."""
        return (self.rewards + self.judged).sum(-1)


@torch.no_grad()
def play(
    networks: Networks, task: Task, luck: Luck, judge: Judge = "none", *, greedy: bool = False
) -> Episodes:
    """Plays an episode of each level; `greedy` takes the most probable tokens."""
    tokens, logprobs = [], []
    hidden = networks.inputs.new_zeros(*luck.states.shape[:2], UNITS)
    last = torch.full(luck.states.shape[:2], START)
    right, named, anchors = [], [], []
    for turn in range(task.turns):
        status = luck.statuses[..., turn]
        if task.dependent:
            status = torch.zeros_like(status) if not turn else (~right[-1]).long()
        state = luck.states[..., turn]
        given = {0: state, 1: status}
        anchors.append(state * STATUSES + status)
        for place in range(TOKENS):
            hidden = networks.step(hidden, networks.embedded(last))
            if place in given:
                token, logprob = given[place], torch.zeros_like(hidden[..., 0])
            else:
                logits = networks.logits(hidden, place).log_softmax(-1)
                reached = logits.exp().cumsum(-1) < luck.uniforms[..., len(tokens), None]
                token = logits.argmax(-1) if greedy else reached[..., :-1].sum(-1)
                logprob = logits.gather(-1, token[..., None])[..., 0]
                if place == 2:
                    shown = state.roll(1, 1) if judge == "placebo" else state
                    named.append(token == shown)
                elif place == 3:
                    right.append(token == RIGHT[state])
            last = token + BOUNDS[place]
            tokens.append(last)
            logprobs.append(logprob)
    earned = task.earned(torch.stack(right, -1))
    paid = JUDGE_WEIGHT * (judge != "none")
    return Episodes(
        torch.stack(tokens, -1),
        torch.stack(logprobs, -1),
        earned,
        task.rewards(earned, luck),
        paid * torch.stack(named, -1),
        torch.stack(anchors, -1),
    )
