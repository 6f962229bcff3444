"""Shortest paths to the target on the lattice of poses."""

import heapq
import math
from collections import deque
from dataclasses import replace
from typing import Protocol

from vagen.envs.navigation.truth import planar
from vagen.envs.navigation.world import BEARINGS, QUARTER, TURNS, Pose

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
        edges: dict[Pose, list[tuple[Pose, int]]] = {}  # by resulting pose: previous pose, cost
        places = self._reachable(start)
        for place, ways in places.items():
            for rotation in range(0, 360, QUARTER):
                here = replace(place, rotation=rotation)
                for action, cost in COSTS.items():
                    if action in TURNS:
                        there = replace(here, rotation=(rotation + TURNS[action]) % 360)
                    else:
                        way = ways[(rotation + BEARINGS[action]) % 360 // QUARTER]
                        there = replace(way, rotation=rotation)
                    edges.setdefault(there, []).append((here, cost))
        costs: dict[Pose, float] = dict.fromkeys(edges, _NONE)
        heap = [(0.0, index, pose) for index, pose in enumerate(edges) if self.is_goal(pose)]
        costs.update((pose, 0.0) for _, _, pose in heap)
        heapq.heapify(heap)
        order = len(edges)
        while heap:
            cost, _, here = heapq.heappop(heap)
            if cost > costs[here]:
                continue
            for there, extra in edges[here]:
                if cost + extra < costs[there]:
                    costs[there] = cost + extra
                    order += 1
                    heapq.heappush(heap, (cost + extra, order, there))
        return costs

    def _reachable(self, start: Pose) -> dict[Pose, list[Pose]]:
        """Reachable positions, facing north, each with its neighbours in the four directions."""
        start = replace(start, rotation=0)
        north_first = sorted(BEARINGS, key=BEARINGS.__getitem__)
        places: dict[Pose, list[Pose]] = {}
        queue = deque([start])
        seen = {start}
        while queue:
            here = queue.popleft()
            ways = [self._space.after(here, action, self._step) for action in north_first]
            places[here] = ways
            for there in ways:
                if there not in seen:
                    seen.add(there)
                    queue.append(there)
        return places
