"""How much of a policy's gradient is signal, for each estimator, at a fixed policy.

Every seed has a policy that a short training left halfway, and per arm a critic that learnt on its
episodes for a while. Of the gradients g of many batches: signal is |E g|, noise the root of the
trace of their covariance; bias shows in the cosine of E g with the gradient of the expected
undiscounted reward. Products of expectations are of two halves of the batches, so that a batch's
own noise is not taken for signal.

Shape legend: S seeds, P parameters.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.method.lab import Networks, Task, draw, play
from benchmarks.method.learner import Arm, Learner, kept_rows, train

POLICY = Arm("bi_level_gae", high_level_lam=0.5, actor_lr=0.003, critic_lr=0.006)
"""What the fixed policies are trained with, on dense rewards."""
POLICY_ITERATIONS = {False: 30, True: 45}
"""By whether turns are dependent: about half of the turns earn then."""
CRITIC_ITERATIONS, BATCHES = 30, 48
TASKS = ("dependent, dense", "independent, noisy")
REFERENCE = Arm("masked_gae", whiten=False)
"""Its expectation on dense rewards is the gradient that all others are held against."""
FIRST_BATCH = 1_000_000
"""First iteration number of the measured batches: none was learnt from."""


class Moments(NamedTuple):
    """Of the gradients of many batches."""

    halves: Tensor
    """[2, S, P] mean of the even batches and of the odd ones."""
    square: Tensor
    """[S] mean of |g|^2."""

    def product(self, other: "Moments") -> Tensor:
        """[S] unbiased estimate of E g . E g' where the two were measured on the same batches."""
        crossed = (self.halves * other.halves.flip(0)).sum(-1)
        return crossed.mean(0)

    def snr(self) -> Tensor:
        """[S] |E g| over the root of the trace of the covariance, of one batch; 0 if lost in it."""
        signal = self.product(self)
        return (signal.clamp(min=0) / (self.square - signal)).sqrt()

    def cosine(self, other: "Moments") -> Tensor:
        """[S] of the two expectations; NaN where one is lost in noise, beyond 1 by noise alone."""
        lengths = self.product(self) * other.product(other)
        return self.product(other) / lengths.sqrt()


def moments(gradients: Tensor) -> Moments:
    """Of gradients [batches, S, P], an even number of batches."""
    halves = gradients.unflatten(0, (-1, 2)).mean(0)
    return Moments(halves, gradients.square().sum(-1).mean(0))


def fixed_policies(task: Task, seeds: Sequence[int]) -> tuple[Tensor, Networks]:
    """Share of turns that earn at the end, [S], and the policies."""
    trained = train(task, POLICY, seeds, POLICY_ITERATIONS[task.dependent])
    return trained.accuracy[:, -1], trained.policies


def measure(policies: Networks, task: Task, arm: Arm, seeds: Sequence[int]) -> Moments:
    """The gradients of an arm's policy loss, before anything is learnt from them."""
    learner = Learner(replace(arm, critic_lr=POLICY.critic_lr), task, seeds)
    gradients = []
    for number in range(CRITIC_ITERATIONS + BATCHES):
        learning = number < CRITIC_ITERATIONS
        if learning and not learner.spec.needs_critic:
            continue
        luck = draw(seeds, FIRST_BATCH + number, arm.n_trajectory)
        played = play(policies, task, luck)
        if not arm.use_loss_mask and not learning:
            with torch.no_grad():
                played = played._replace(logprobs=policies.logprobs(played.tokens)[0])
        advantages, returns, values = learner.estimate(policies, luck, played)
        if learning:
            assert values is not None
            learner.learn_values(played, values, returns, luck.orders[:, 1])
            continue
        policies.zero_grad()
        every = torch.arange(played.tokens.shape[1]).expand(len(seeds), -1)
        rows = kept_rows(arm, played, every)
        learner.policy_loss(policies, played, advantages, rows)[0].backward()
        grads = [p.grad.flatten(1) for p in policies.parameters() if p.grad is not None]
        gradients.append(torch.cat(grads, 1))
    return moments(torch.stack(gradients))
