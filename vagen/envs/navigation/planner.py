"""Shortest ways to the target on the lattice of poses that moves and turns can reach."""

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
"""What an action counts in the search for the best way: the expert takes few actions, but looks
where it goes. One step aside is nearer than a turn and a step, two are farther."""

_NONE = math.inf


class Space(Protocol):
    """Where an agent moves."""

    def after(self, pose: Pose, action: str, step: float) -> Pose:
        """The pose after an action: the same one where it is held back."""
        ...


class Planner:
    """Best actions from any reachable pose to a target.

    Poses are level (no tilt): tilting neither helps nor hinders.
    """

    def __init__(
        self, space: Space, target: tuple[float, float], *, step: float, reach: float
    ) -> None:
        """Prepares the search.

        Args:
            space: where the agent moves.
            target: x and z of the target, in metres.
            step: metres of a move.
            reach: metres from the target under which a pose is a success.
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
        """Fewest moves (turns not counted) to a success; None if more than `most`."""
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
        """Up to `count` actions of a best way from a pose; none at a success or without a way."""
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
        """Cost to go from every pose that is reachable from `start`."""
        edges: dict[Pose, list[tuple[Pose, int]]] = {}  # by where an action leads: from where, cost
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
        """Places that moves lead to, looking north, each with where the four directions lead."""
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
