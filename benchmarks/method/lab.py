"""A task of eight turns in bare tokens, small recurrent networks, and the package's own learning.

A turn is five tokens: the state (one of eight), its status, then what the policy samples: a word,
an action, an end token. One action is right in each state. `independent`: a right turn earns.
`dependent`: an error persists, a turn earns if it and the one before it were right (the status says
whether it was), so that every action decides about the next turn's reward too. An earned turn pays
1 (`dense`), the same with noise at every turn, of deviation 1 (.3 if dependent: `noisy`), or there
is only one reward of 10 at the end, for at least three earned turns (two if dependent: `sparse`).
A judge pays .5 where the word names the state, a placebo where it names that of another episode.

All seeds of an arm are trained side by side: their networks are stacked, their random numbers are
their own, the same ones for every arm.

Shape legend: S seeds, B episodes, K turns, T = 5 K tokens, H units, V tokens of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vagen.advantage import CreditReliability, estimate_advantages, get_estimator, whiten
from vagen.learning import policy_loss, select_groups, value_loss

TURNS, TOKENS = 8, 5
STATES, STATUSES = 8, 2
BOUNDS = np.cumsum([0, STATES, STATUSES, STATES, STATES, 1]).tolist()
"""Vocabulary: states, statuses, words, actions, the end token; each place in a turn has its own."""
START = BOUNDS[-1]
"""What every episode begins with; not sampled."""
RIGHT = torch.tensor([3, 1, 4, 0, 5, 7, 2, 6])
"""The right action in each state."""
LENGTH = TURNS * TOKENS
PLACE = torch.arange(LENGTH) % TOKENS
SAMPLED, STARTS, ENDS = PLACE >= 2, PLACE == 2, PLACE == TOKENS - 1

EPISODES, MINI_BATCH, UNITS = 64, 32, 32
ACTOR_LR, CRITIC_LR, GRAD_CLIP = 3e-3, 6e-3, 1.0
JUDGE_WEIGHT = 0.5

Judge = Literal["none", "judge", "placebo"]


@dataclass(frozen=True)
class Task:
    """What an episode earns."""

    dependent: bool
    reward: Literal["dense", "noisy", "sparse"]

    def earned(self, right_BK: Tensor) -> Tensor:
        """Turns that earn, float32, of those that are right (bool); any leading shape."""
        right = right_BK.float()
        if not self.dependent:
            return right
        return right * torch.cat([torch.ones_like(right[..., :1]), right[..., :-1]], -1)

    def rewards(self, earned_BK: Tensor, noise_BK: Tensor) -> Tensor:
        """The task's reward of each turn; same shapes."""
        if self.reward != "sparse":
            deviation = 0.0 if self.reward == "dense" else 0.3 if self.dependent else 1.0
            return earned_BK + deviation * noise_BK
        rewards = torch.zeros_like(earned_BK)
        rewards[..., -1] = 10.0 * (earned_BK.sum(-1) >= (2 if self.dependent else 3))
        return rewards


@dataclass(frozen=True)
class Arm:
    """One way to learn, by the names that an experiment has for it."""

    adv_estimator: str
    use_loss_mask: bool = True
    use_multi_turn_reward: bool = True
    gamma: float = 1.0
    lam: float = 1.0
    high_level_gamma: float = 0.95
    high_level_lam: float = 1.0
    n_trajectory: int = 1
    whiten: bool = True
    clip_ratio_high: float = 0.2
    cliprange_value: float = 5.0
    rollout_filter: float = 1.0
    """Share of groups that is learnt from, those of the largest deviation."""
    judge: Judge = "none"


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

    def logprobs(self, tokens_SBT: Tensor) -> Tensor:
        """[S, B, T] log-probability of each token among those of its place."""
        count, episodes, _ = tokens_SBT.shape
        states = self.states(tokens_SBT).view(count, -1, TURNS, TOKENS, UNITS)
        tokens = tokens_SBT.view(count, -1, TURNS, TOKENS)
        places = []
        for place in range(TOKENS):
            logits = self.logits(states[..., place, :].reshape(count, -1, UNITS), place)
            chosen = (tokens[..., place] - BOUNDS[place]).reshape(count, -1, 1)
            places.append(logits.log_softmax(-1).gather(-1, chosen).view(count, -1, TURNS))
        return torch.stack(places, -1).view(count, episodes, LENGTH)

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
    orders: Tensor
    """int64 [S, 2, B], of the actor's and the critic's mini batches."""


def draw(seeds: Sequence[int], iteration: int, group: int = 1, episodes: int = EPISODES) -> Luck:
    """Draws them; `group` episodes in a row are of one level."""
    rows = []
    for seed in seeds:
        source = torch.Generator().manual_seed(1_000_003 * (seed + 1) + iteration)
        levels = torch.rand(2, episodes, TURNS, generator=source)
        levels = levels[:, : episodes // group].repeat_interleave(group, 1)
        uniforms = torch.rand(episodes, LENGTH, generator=source)
        noise = torch.randn(episodes, TURNS, generator=source)
        orders = torch.stack([torch.randperm(episodes, generator=source) for _ in range(2)])
        sizes = torch.tensor([STATES, STATUSES])[:, None, None]
        rows.append((*(levels * sizes).long(), uniforms, noise, orders))
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
    """[S, B, K], the judge's included."""
    anchors: Tensor
    """int64 [S, B, K], the state and status that a turn starts from."""


@torch.no_grad()
def play(
    networks: Networks, task: Task, luck: Luck, judge: Judge = "none", *, greedy: bool = False
) -> Episodes:
    """Plays an episode of each level; `greedy` takes the most probable tokens."""
    tokens, logprobs = [], []
    hidden = networks.inputs.new_zeros(*luck.states.shape[:2], UNITS)
    last = torch.full(luck.states.shape[:2], START)
    right, named, anchors = [], [], []
    for turn in range(TURNS):
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
    rewards = task.rewards(earned, luck.noise)
    if judge != "none":
        rewards = rewards + JUDGE_WEIGHT * torch.stack(named, -1)
    return Episodes(
        torch.stack(tokens, -1),
        torch.stack(logprobs, -1),
        earned,
        rewards,
        torch.stack(anchors, -1),
    )


@dataclass
class Learner:
    """Critics, and the advantages of an arm with them."""

    arm: Arm
    task: Task
    seeds: Sequence[int]
    credits: list[CreditReliability] = field(init=False)

    def __post_init__(self) -> None:
        self.spec = get_estimator(self.arm.adv_estimator)
        self.critics = Networks(self.seeds, 1, zero_head=True)
        self.optimizer = torch.optim.Adam(self.critics.parameters(), CRITIC_LR)
        self.credits = [CreditReliability() for _ in self.seeds]
        sampled_or_later = torch.arange(LENGTH) > 0
        self.action_mask = SAMPLED if self.arm.use_loss_mask else sampled_or_later
        by_name = {"turn_end": ENDS, "turn_start": STARTS, "loss": SAMPLED}
        mask = "loss" if self.arm.use_loss_mask else "attention"
        if self.spec.value_mask != "attention":
            mask = self.spec.value_mask
        self.critic_mask = by_name.get(mask or "", torch.ones_like(SAMPLED))

    def advantages(
        self, played: Episodes, values_SBT: Tensor | None, baselines_SB: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Advantages and returns, each [S, B, T].

        The seeds go through the package in one call, as levels of one batch, and are whitened one
        by one; an estimator that compares the whole batch is called for each.
        """
        count, episodes, _ = played.rewards.shape
        rewards = torch.zeros(count, episodes, LENGTH)
        if self.arm.use_multi_turn_reward:
            rewards[..., ENDS] = played.rewards
        else:
            rewards[..., -1] = played.rewards.sum(-1)
        given = {"rewards": rewards, "anchor_ids": played.anchors.repeat_interleave(TOKENS, -1)}
        given["group_ids"] = (torch.arange(rewards[..., 0].numel()) // self.arm.n_trajectory).view(
            count, episodes
        )
        if values_SBT is not None:
            given |= {"values": values_SBT, "bootstrap_values": torch.zeros(count, episodes)}
        if baselines_SB is not None:
            given["baselines"] = baselines_SB
        if self.spec.adapts and values_SBT is not None:
            lams = torch.tensor([credit.lams(TURNS) for credit in self.credits])
            given["turn_lams"] = lams[:, None].expand(-1, episodes, -1)
            self._watch(rewards[..., ENDS], values_SBT[..., ENDS])
        masks = {
            "loss_mask": SAMPLED,
            "action_mask": self.action_mask,
            "attention_mask": torch.ones_like(SAMPLED),
            "turn_end_mask": ENDS,
        }
        found = []
        for part in torch.arange(count).split(1 if self.spec.batch_based else count):
            named = {name: tensor[part].flatten(0, 1) for name, tensor in given.items()}
            named |= {name: mask.expand(len(part) * episodes, -1) for name, mask in masks.items()}
            found.append(
                estimate_advantages(
                    self.arm.adv_estimator,
                    whiten=False,
                    gamma=self.arm.gamma,
                    lam=self.arm.lam,
                    high_level_gamma=self.arm.high_level_gamma,
                    high_level_lam=self.arm.high_level_lam,
                    **named,
                )
            )
        advantages, returns = (
            torch.cat(column).view(rewards.shape) for column in zip(*found, strict=True)
        )
        if self.arm.whiten and self.spec.whiten_over:
            shown = {name: mask.expand(episodes, -1) for name, mask in masks.items()}
            mask, over = (shown[f"{n}_mask"] for n in (self.spec.mask, self.spec.whiten_over))
            advantages = torch.stack([whiten(a, mask, statistics_BT=over) for a in advantages])
        return advantages, returns

    def _watch(self, rewards_SBK: Tensor, values_SBK: Tensor) -> None:
        """Shows what the turns came to to what chooses lambda."""
        returns, following = torch.zeros_like(rewards_SBK), torch.zeros_like(rewards_SBK[..., 0])
        for turn in reversed(range(TURNS)):
            following = rewards_SBK[..., turn] + self.arm.high_level_gamma * following
            returns[..., turn] = following
        for credit, goals, values in zip(self.credits, returns, values_SBK, strict=True):
            credit.update(goals.tolist(), values.tolist())

    def estimate(
        self, policies: Networks, luck: Luck, played: Episodes
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Advantages, returns and values; plays the greedy episodes if the estimator reads them."""
        with torch.no_grad():
            values = self.critics.values(played.tokens) if self.spec.needs_critic else None
        baselines = None
        if self.spec.needs_baselines:
            other = luck._replace(noise=luck.noise.roll(1, 1))
            greedy = play(policies, self.task, other, self.arm.judge, greedy=True)
            baselines = greedy.rewards.sum(-1)
        return *self.advantages(played, values, baselines), values

    def learn_values(
        self, played: Episodes, values: Tensor, returns: Tensor, rows_SN: Tensor
    ) -> None:
        """One pass of the critics over these rows."""
        for part in rows_SN.split(MINI_BATCH, 1):
            picked = (torch.arange(len(part))[:, None], part)
            after = self.critics.values(played.tokens[picked])
            loss, _ = value_loss(
                after,
                values[picked],
                returns[picked],
                self.critic_mask.expand_as(after),
                cliprange_value=self.arm.cliprange_value,
            )
            step(self.optimizer, loss * len(self.seeds))

    def policy_loss(
        self, policies: Networks, played: Episodes, advantages: Tensor, rows_SN: Tensor
    ) -> Tensor:
        """The package's policy loss over these rows, summed over seeds.

        All rows have as many tokens to learn from, so that the mean over all seeds is the mean of
        the seeds' own.
        """
        picked = (torch.arange(len(rows_SN))[:, None], rows_SN)
        logprobs = policies.logprobs(played.tokens[picked])
        loss, _ = policy_loss(
            logprobs,
            played.logprobs[picked],
            advantages[picked],
            self.action_mask.expand_as(logprobs),
            clip_ratio_high=self.arm.clip_ratio_high,
        )
        return loss * len(self.seeds)


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step, each seed's gradient cut to `GRAD_CLIP` by itself."""
    optimizer.zero_grad()
    loss.backward()
    grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
    norms = torch.stack([grad.square().flatten(1).sum(1) for grad in grads]).sum(0).sqrt()
    factors = (GRAD_CLIP / norms.clamp(min=GRAD_CLIP)).view(-1, 1, 1)
    for grad in grads:
        grad.mul_(factors)
    optimizer.step()


def kept_rows(arm: Arm, played: Episodes, orders_SB: Tensor) -> Tensor:
    """[S, N] rows that are learnt from, in their order: all, or those that the filter keeps."""
    if arm.rollout_filter == 1.0:
        return orders_SB
    scores = played.rewards.sum(-1).unflatten(1, (-1, arm.n_trajectory))
    kept = []
    for stds, order in zip(scores.std(-1).double().numpy(), orders_SB, strict=True):
        groups = select_groups(stds, strategy="top_k", value=arm.rollout_filter, include_zero=True)
        kept.append(order[torch.from_numpy(groups)[order // arm.n_trajectory]])
    return torch.stack(kept)


def train(
    task: Task,
    arm: Arm,
    seeds: Sequence[int],
    iterations: int,
) -> tuple[Tensor, Networks]:
    """Share of turns that earn, [S, iterations], before each update; and the policies."""
    policies = Networks(seeds, START)
    learner = Learner(arm, task, seeds)
    optimizer = torch.optim.Adam(policies.parameters(), ACTOR_LR)
    curve = []
    for iteration in range(iterations):
        luck = draw(seeds, iteration, arm.n_trajectory)
        played = play(policies, task, luck, arm.judge)
        curve.append(played.earned.mean((1, 2)))
        if not arm.use_loss_mask:  # those of observations too
            with torch.no_grad():
                played = played._replace(logprobs=policies.logprobs(played.tokens))
        advantages, returns, values = learner.estimate(policies, luck, played)
        if values is not None:
            learner.learn_values(played, values, returns, kept_rows(arm, played, luck.orders[:, 1]))
        rows = kept_rows(arm, played, luck.orders[:, 0])
        for part in rows.split(max(1, MINI_BATCH * rows.shape[1] // EPISODES), 1):
            step(optimizer, learner.policy_loss(policies, played, advantages, part))
    return torch.stack(curve, 1), policies
