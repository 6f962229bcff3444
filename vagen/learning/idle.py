"""Warnings about trainings that learn nothing."""

from collections.abc import Mapping, Sequence

from vagen.metrics import SUCCESS

PATIENCE = 10
"""Iterations in a row."""

SIGNS = {
    "train/format_correct": (
        0.0,
        "no answer has kept the layout: the policy cannot write what the prompt asks for, and no "
        "action is carried out; warm-start it (warm_start.steps), take a larger model, or look at "
        "the answers with `vagen view`",
    ),
    SUCCESS: (
        0.0,
        "no episode has succeeded, so that success cannot be learnt from; take easier levels, more "
        "turns (rollout_manager.max_turns), or a warm start",
    ),
    "rollout/zero_std_groups": (
        1.0,
        "no group of episodes has varied in its score: nothing tells better from worse; take other "
        "levels, a higher temperature (actor_rollout_ref.rollout.temperature), or more "
        "episodes a level (rollout_manager.n_trajectory)",
    ),
}
"""Metrics, each with the suspicious value and its warning."""


def no_learning_warnings(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """Warnings about values that have just lasted for `PATIENCE` iterations.

    Args:
        rows: Metrics of the iterations so far, or of the last `PATIENCE` + 1.

    >>> no_learning_warnings([{"train/success": 0.0}] * 10)[0][:40]
    'for 10 iterations no episode has succeed'
    """
    found = []
    for name, (value, meaning) in SIGNS.items():
        seen = [row.get(name) == value for row in rows[-PATIENCE - 1 :]]
        began = len(seen) == PATIENCE or not seen[0]
        if len(seen) >= PATIENCE and all(seen[-PATIENCE:]) and began:
            found.append(f"for {PATIENCE} iterations {meaning}")
    return found
