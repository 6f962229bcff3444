"""Shortest paths to the target on the lattice of poses."""

import heapq
import math
from collections import deque
from dataclasses import replace
from typing import Protocol

from vagen.envs.navigation.truth import planar
from vagen.envs.navigation.world import BEARINGS, Pose

COSTS = {
    "moveahead": 4,
    "moveright": 7,
    "moveleft": 7,
    "moveback": 11,
    "rotateright": 4,
    "rotateleft": 4,
}
"""Cost of actions in the search: few actions, but facing the direction of movement. One sidestep is
cheaper than a turn and a step, two are more expensive."""

_NONE = math.inf


class Space(Protocol):
    """The space in which an agent moves."""

    def after(self, pose: Pose, action: str, step: float) -> Pose:
        """The pose after an action, unchanged if it is blocked."""
        ...


class Planner:
    """Optimal actions from any reachable pose to a target.

    Poses are level, since tilting does not matter.
    """

    def __init__(
        self, space: Space, target: tuple[float, float], *, step: float, reach: float
    ) -> None:
        """Prepares the search.

        Args:
            space: Space of the agent.
            target: x and z of the target, in metres.
            step: Metres per move.
            reach: Distance from the target in metres that counts as success.
        """
        self._space = space
        self._target = target
        self._step = step
        self._reach = reach
        self._costs: dict[Pose, float] = {}

    def is_goal(self, pose: Pose) -> bool:
        """Whether a pose is a success."""
        return planar(pose, *self._target) < self._reach

    def moves_needed(self, pose: Pose, most: int) -> int | None:
        """Minimum number of moves (without turns) to a success; None if more than `most`."""
        start = replace(pose, rotation=0, horizon=0)
        distances = {start: 0}
        queue = deque([start])
        while queue:
            here = queue.popleft()
            if self.is_goal(here):
                return distances[here]
            if distances[here] == most:
                continue
            for action in BEARINGS:
                there = self._space.after(here, action, self._step)
                if there not in distances:
                    distances[there] = distances[here] + 1
                    queue.append(there)
        return None

    def plan(self, pose: Pose, count: int) -> list[str]:
        """Up to `count` optimal actions from a pose; empty at a success or without a path."""
        here = replace(pose, horizon=0)
        if here not in self._costs:
            self._costs = self._search(here)
        actions: list[str] = []
        while len(actions) < count and 0 < self._costs[here] < _NONE:
            ways = [(action, self._space.after(here, action, self._step)) for action in COSTS]
            action, here = min(ways, key=lambda way: COSTS[way[0]] + self._costs[way[1]])
            actions.append(action)
        return actions

    def _search(self, start: Pose) -> dict[Pose, float]:
        """Cost to success of every pose reachable from `start`."""
        ways: dict[Pose, list[tuple[Pose, int]]] = {start: []}  # by result: pose before, cost
        queue = deque(ways)
        while queue:
            here = queue.popleft()
            for action, cost in COSTS.items():
                there = self._space.after(here, action, self._step)
                if there not in ways:
                    ways[there] = []
                    queue.append(there)
                ways[there].append((here, cost))
        costs: dict[Pose, float] = {pose: 0.0 if self.is_goal(pose) else _NONE for pose in ways}
        heap = [(0.0, index, pose) for index, pose in enumerate(ways) if not costs[pose]]
        order = len(ways)
        while heap:
            cost, _, here = heapq.heappop(heap)
            if cost > costs[here]:
                continue
            for before, extra in ways[here]:
                if cost + extra < costs[before]:
                    costs[before] = cost + extra
                    order += 1
                    heapq.heappush(heap, (cost + extra, order, before))
        return costs
