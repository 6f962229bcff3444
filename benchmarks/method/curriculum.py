"""What a curriculum over levels does: `data.curriculum` on levels of known difficulty.

A level is eight states and a number, from 1 to 8: so many turns must be right for the one reward of
10 at the end. A policy that begins by guessing hardly ever succeeds where the number is above 3,
and later always where it is small. The policy is not told the number, so the share of right turns,
times nothing else, is its mean success over all levels.
"""

from collections.abc import Sequence

import numpy as np
import torch

from benchmarks.method import lab
from benchmarks.method.learner import Arm
from vagen.config.data_options import CurriculumConfig
from vagen.rollout.curriculum import BucketCounts, count_successes, draw_weights, weighted_order

LEVELS = 1024
"""Per seed; as many of each number of right turns."""


class Levels:
    """Levels of every seed, drawn iteration by iteration as the package draws them."""

    def __init__(self, arm: Arm, seeds: Sequence[int]) -> None:
        self.config = CurriculumConfig(enable=arm.buckets is not None, buckets=arm.buckets or 1)
        self.arm, self.seeds = arm, seeds
        self.states = torch.stack(
            [
                torch.randint(
                    lab.STATES, (LEVELS, lab.TURNS), generator=torch.Generator().manual_seed(seed)
                )
                for seed in seeds
            ]
        )
        self.needed = torch.arange(LEVELS) * lab.TURNS // LEVELS + 1
        buckets = (self.needed - 1) * self.config.buckets // lab.TURNS
        self.buckets = [f"levels/{bucket}" for bucket in buckets.tolist()]
        self.seen: list[BucketCounts] = [{} for _ in seeds]
        self.iteration = 0

    def play(
        self, networks: lab.Networks, task: lab.Task, luck: lab.Luck, judge: lab.Judge
    ) -> lab.Episodes:
        """Plays the levels of an iteration; a level is played as often as a group is large."""
        group = self.arm.n_trajectory
        drawn = torch.stack(
            [
                torch.from_numpy(self._order(index)[: lab.EPISODES // group].copy())
                for index in range(len(self.seeds))
            ]
        ).repeat_interleave(group, 1)
        states = torch.stack([s[d] for s, d in zip(self.states, drawn, strict=True)])
        played = lab.play(networks, task, luck._replace(states=states), judge)
        success = played.earned.sum(-1) >= self.needed[drawn]
        rewards = torch.zeros_like(played.rewards)
        rewards[..., -1] = 10.0 * success
        for index, (levels, won) in enumerate(zip(drawn, success, strict=True)):
            buckets = [self.buckets[level] for level in levels.tolist()]
            self.seen[index] = count_successes(self.seen[index], buckets, won.tolist())
        self.iteration += 1
        return played._replace(rewards=rewards)

    def _order(self, index: int) -> np.ndarray:
        seed = 1_000 * self.seeds[index] + self.iteration
        if not self.config.enable:
            return np.random.Generator(np.random.Philox(key=seed)).permutation(LEVELS)
        weights = draw_weights(self.buckets, self.seen[index])
        return weighted_order(weights, seed)
