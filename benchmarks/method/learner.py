"""An arm's learning on the task of `lab`, with the package's own estimators and losses.

Shapes as in `lab`: S seeds, B episodes, K turns, T tokens; N rows that are learnt from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.method.lab import (
    EPISODES,
    START,
    TOKENS,
    Episodes,
    Judge,
    Luck,
    Networks,
    Task,
    draw,
    places,
    play,
)
from vagen.advantage import CreditReliability, estimate_advantages, get_estimator, whiten
from vagen.config.schema import EntropyControl
from vagen.learning import (
    EntropyController,
    LossMode,
    covarying_tokens,
    policy_loss,
    select_groups,
    value_loss,
)

MINI_BATCH, GRAD_CLIP = 32, 1.0


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
    bi_level_mix: float = 1.0
    n_trajectory: int = 1
    whiten: bool = True
    clip_ratio_high: float = 0.2
    cliprange_value: float = 5.0
    rollout_filter: float = 1.0
    """Share of groups that is learnt from, those of the largest deviation."""
    judge: Judge = "none"
    reward_placement: Literal["turn_end", "span"] = "turn_end"
    """Where the judge's reward is: on a turn's last token, or on the word that it is for."""
    actor_lr: float = 0.02
    critic_lr: float = 0.03
    entropy_coeff: float = 0.0
    entropy_target: float | None = None
    """Nats per sampled token; then the coefficient only begins there."""
    loss_mode: LossMode = "vanilla"
    cov_ratio: float = 0.02
    """`clip_cov_ratio` or `kl_cov_ratio`: of 768 tokens."""
    ppo_kl_coef: float = 1.0
    epochs: int = 1
    """Passes of the policy over an iteration's episodes."""
    sharpness: float = 1.0
    """What the policy's first logits are multiplied by."""
    buckets: int | None = None
    """Of `data.curriculum` on levels of known difficulty; None draws them evenly."""


@dataclass
class Learner:
    """Critics, and the advantages of an arm with them."""

    arm: Arm
    task: Task
    seeds: Sequence[int]
    credits: list[CreditReliability] = field(init=False)
    controllers: list[EntropyController] = field(init=False)
    """Of each seed's entropy bonus; none if it is fixed."""

    def __post_init__(self) -> None:
        self.spec = get_estimator(self.arm.adv_estimator)
        self.critics = Networks(self.seeds, 1, zero_head=True)
        self.optimizer = torch.optim.Adam(self.critics.parameters(), self.arm.critic_lr)
        self.credits = [CreditReliability() for _ in self.seeds]
        self.draws = [np.random.default_rng(seed) for seed in self.seeds]
        target, control, first = self.arm.entropy_target, EntropyControl(), self.arm.entropy_coeff
        self.controllers = []
        if target is not None:
            self.controllers = [
                EntropyController(target, control.step, control.max_coeff, first)
                for _ in self.seeds
            ]
        self.places = places(self.task.turns)
        every = torch.ones_like(self.places.ends)
        sampled_or_later = torch.arange(len(every)) > 0
        self.action_mask = self.places.sampled if self.arm.use_loss_mask else sampled_or_later
        by_name = {
            "turn_end": self.places.ends,
            "turn_start": self.places.starts,
            "loss": self.places.sampled,
        }
        mask = "loss" if self.arm.use_loss_mask else "attention"
        if self.spec.value_mask != "attention":
            mask = self.spec.value_mask
        self.critic_mask = by_name.get(mask or "", every)

    def advantages(
        self, played: Episodes, values_SBT: Tensor | None, baselines_SB: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Advantages and returns, each [S, B, T].

        The seeds go through the package in one call, as levels of one batch, and are whitened one
        by one; an estimator that compares the whole batch is called for each.
        """
        count, episodes, _ = played.tokens.shape
        rewards = torch.zeros(played.tokens.shape)
        ends = self.places.ends
        if self.arm.use_multi_turn_reward:
            rewards[..., ends] = played.rewards
            on_span = self.arm.reward_placement == "span"
            rewards[..., self.places.starts if on_span else ends] += played.judged
        else:
            rewards[..., -1] = played.scores
        given = {"rewards": rewards, "anchor_ids": played.anchors.repeat_interleave(TOKENS, -1)}
        given["group_ids"] = (torch.arange(rewards[..., 0].numel()) // self.arm.n_trajectory).view(
            count, episodes
        )
        if values_SBT is not None:
            given |= {"values": values_SBT, "bootstrap_values": torch.zeros(count, episodes)}
        if baselines_SB is not None:
            given["baselines"] = baselines_SB
        if self.spec.adapts and values_SBT is not None:
            lams = torch.tensor([credit.lams(self.task.turns) for credit in self.credits])
            given["turn_lams"] = lams[:, None].expand(-1, episodes, -1)
            self._watch(rewards[..., ends], values_SBT[..., ends])
        masks = {
            "loss_mask": self.places.sampled,
            "action_mask": self.action_mask,
            "attention_mask": torch.ones_like(ends),
            "turn_end_mask": ends,
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
                    bi_level_mix=self.arm.bi_level_mix,
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
        for turn in reversed(range(self.task.turns)):
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
            baselines = greedy.scores
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
    ) -> tuple[Tensor, Tensor]:
        """The package's policy loss over these rows, summed over seeds, and each seed's entropy.

        All rows have as many tokens to learn from, so that the mean over all seeds is the mean of
        the seeds' own.
        """
        picked = (torch.arange(len(rows_SN))[:, None], rows_SN)
        logprobs, entropy = policies.logprobs(played.tokens[picked])
        old, mask = played.logprobs[picked], self.action_mask.expand_as(logprobs)
        loss, _ = policy_loss(
            logprobs,
            old,
            advantages[picked],
            mask,
            loss_mode=self.arm.loss_mode,
            unit_ids=self._units(rows_SN),
            chosen=self._covarying(old, advantages[picked], mask),
            ppo_kl_coef=self.arm.ppo_kl_coef,
            clip_ratio_high=self.arm.clip_ratio_high,
        )
        entropy_S = entropy[..., self.action_mask].mean((1, 2))
        bonus = (self.weights() * entropy_S).sum()
        return loss * len(self.seeds) - bonus, entropy_S.detach()

    def _units(self, rows_SN: Tensor) -> Tensor:
        """Number of the row or, in `gspo_turn`, of the turn that a token is of; [S, N, T]."""
        parts = self.task.turns if self.arm.loss_mode == "gspo_turn" else 1
        length = self.task.turns * TOKENS
        units = torch.arange(rows_SN.numel() * parts).repeat_interleave(length // parts)
        return units.view(*rows_SN.shape, length)

    def _covarying(self, old: Tensor, advantages: Tensor, mask: Tensor) -> Tensor | None:
        """What `clip_cov` and `kl_cov` hold back, seed by seed; of the shape of `mask`."""
        mode = self.arm.loss_mode
        if mode not in ("clip_cov", "kl_cov"):
            return None
        chosen = torch.zeros_like(mask)
        for held, kept, *both, draws in zip(chosen, mask, old, advantages, self.draws, strict=True):
            logprobs, given = (part[kept].numpy() for part in both)
            held[kept] = torch.from_numpy(
                covarying_tokens(logprobs, given, draws, loss_mode=mode, ratio=self.arm.cov_ratio)
            )
        return chosen

    def weights(self) -> Tensor:
        """[S] weight of each seed's entropy bonus."""
        if not self.controllers:
            return torch.full((len(self.seeds),), self.arm.entropy_coeff)
        return torch.tensor([controller.weight for controller in self.controllers])


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
    scores = played.scores.unflatten(1, (-1, arm.n_trajectory))
    kept = []
    for stds, order in zip(scores.std(-1).double().numpy(), orders_SB, strict=True):
        groups = select_groups(stds, strategy="top_k", value=arm.rollout_filter, include_zero=True)
        kept.append(order[torch.from_numpy(groups)[order // arm.n_trajectory]])
    return torch.stack(kept)


class Training(NamedTuple):
    """What came of one, by iteration."""

    accuracy: Tensor
    """[S, iterations] share of turns that earn, before each update."""
    entropy: Tensor
    """[S, iterations] mean of an update's steps, nats per token that is learnt from."""
    weights: Tensor
    """[S, iterations] of the entropy bonus."""
    policies: Networks


def train(
    task: Task,
    arm: Arm,
    seeds: Sequence[int],
    iterations: int,
    play: Callable[[Networks, Task, Luck, Judge], Episodes] = play,
) -> Training:
    """Trains a policy per seed from scratch; `play` plays each iteration's episodes."""
    policies = Networks(seeds, START)
    policies.head.data *= arm.sharpness
    learner = Learner(arm, task, seeds)
    optimizer = torch.optim.Adam(policies.parameters(), arm.actor_lr)
    accuracy, entropy, weights = [], [], []
    for iteration in range(iterations):
        luck = draw(seeds, iteration, arm.n_trajectory, turns=task.turns)
        played = play(policies, task, luck, arm.judge)
        accuracy.append(played.earned.mean((1, 2)))
        weights.append(learner.weights())
        if not arm.use_loss_mask:  # those of observations too
            with torch.no_grad():
                played = played._replace(logprobs=policies.logprobs(played.tokens)[0])
        advantages, returns, values = learner.estimate(policies, luck, played)
        if values is not None:
            learner.learn_values(played, values, returns, kept_rows(arm, played, luck.orders[:, 1]))
        rows = kept_rows(arm, played, luck.orders[:, 0])
        found = []
        for part in arm.epochs * rows.split(max(1, MINI_BATCH * rows.shape[1] // EPISODES), 1):
            loss, entropy_S = learner.policy_loss(policies, played, advantages, part)
            step(optimizer, loss)
            found.append(entropy_S)
        entropy.append(torch.stack(found).mean(0))
        for controller, measured in zip(learner.controllers, entropy[-1].tolist(), strict=False):
            controller.update(measured)
    return Training(
        torch.stack(accuracy, 1), torch.stack(entropy, 1), torch.stack(weights, 1), policies
    )
