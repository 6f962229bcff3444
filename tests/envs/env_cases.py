"""Episodes, and what the tests of the contract need to know of environments without a simulator."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from vagen import envs

NOTHING = '<svg xmlns="http://www.w3.org/2000/svg"/>'
"""An empty sheet."""


@dataclass(frozen=True)
class Case:
    """How to test one environment."""

    idle: str
    """A legal action that does not end most games."""
    modes: tuple[str, ...] = ("vision", "text")
    options: dict[str, Any] = field(default_factory=dict)
    """Options that keep its tests quick."""
    is_certain: bool = True
    """Whether the expert always succeeds."""
    predicts_all: bool = True
    """Whether the expert's prediction is the whole truth about the next state."""
    seeds: int = 40
    """Episodes of the expert."""
    limit: int = 4
    """Idle actions that a game stands."""
    invalid: float = 0.0
    """Reward of a response that cannot be read."""
    has_many_actions: bool = True
    """Whether a response may hold several actions."""

    def several(self, count: int) -> dict[str, Any]:
        """Options for an expert with `count` actions a turn, where that is possible."""
        if not self.has_many_actions:
            return {}
        return {"max_actions_per_step": 3, "expert_actions_per_turn": count}


CASES = {
    "FrozenLake": Case("Left"),
    "Sokoban": Case("Up"),
    "SVG": Case(NOTHING, options={"side": 64}, seeds=8, has_many_actions=False),
    "Blackjack": Case(
        "Hit", is_certain=False, predicts_all=False, limit=1, invalid=-0.1, has_many_actions=False
    ),
    "Household": Case("look", modes=("text",), predicts_all=False),
}
NAMES = sorted(CASES)
GRIDS = ("FrozenLake", "Sokoban")
MODES = [(name, mode) for name in NAMES for mode in CASES[name].modes]

assert set(NAMES) <= set(envs.ENVIRONMENTS)


def episode(
    env: Any, seed: int, respond: Callable[[], str] | None = None, **options: Any
) -> Iterator[tuple[Any, Any]]:
    """Plays an episode of the expert's responses, or of others, to its end.

    Yields:
        The state before each step, and what the step returned.
    """
    _, info = env.reset(seed=seed, options=options)
    over = False
    while not over:
        before = info["state"]
        step = env.step((respond or env.expert_response)())
        yield before, step
        _, _, terminated, truncated, info = step
        over = terminated or truncated


def wins(
    env: Any, seeds: Iterable[int], respond: Callable[[], str] | None = None, **options: Any
) -> int:
    """How many episodes are won."""
    ends = ([*episode(env, seed, respond, **options)][-1] for seed in seeds)
    return sum(info["success"] for _, (*_, info) in ends)
