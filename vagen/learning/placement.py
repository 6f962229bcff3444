"""Moves rewards from the end of a turn to the tokens that earned them."""

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from vagen.config.schema import ExperimentConfig
from vagen.envs.parsing import Tags
from vagen.learning.selection import text_share
from vagen.rollout.types import TokenRow, Trajectory, Turn


def move_to_spans(
    config: ExperimentConfig,
    rewards_BT: Tensor,
    rows: Sequence[TokenRow],
    owners: Sequence[Trajectory],
    text_of: Callable[[Sequence[int]], str],
) -> None:
    """Moves the judge's rewards to the last tokens of their sections, in place.

    Parts of an environment's reward (`Turn.placed`) go to the tokens that complete their texts. The
    rest stays on the last token of the turn, and the sum of a turn stays the same.

    Args:
        config: The experiment, with `rollout_manager.reward_placement: span`.
        rewards_BT: [B, T] floats, with each turn's reward on its last sampled token.
        rows: The B rows.
        owners: The trajectory of each row.
        text_of: Returns the text of response ids.
    """
    for b, (row, owner) in enumerate(zip(rows, owners, strict=True)):
        tags = Tags.model_validate(config.envs[owner.config_id].env_config.get("tags", {}))
        share = text_share(config, owner)
        for k in np.unique(row.turn_index[row.loss_mask]).tolist():
            if k >= len(owner.turns):
                continue  # the environment failed in this turn
            sampled = np.flatnonzero(row.loss_mask & (row.turn_index == k))
            first, last = int(sampled[0]), int(sampled[-1])
            ids = row.input_ids[first : last + 1].tolist()
            for end, amount in _spans(owner.turns[k], tags, share):
                # The fewest tokens whose text has the character, as a prefix of what was sampled.
                count = bisect_left(
                    range(1, len(ids)), end, key=lambda n, ids=ids: len(text_of(ids[:n]))
                )
                token = int(sampled[np.searchsorted(sampled, first + count, "right") - 1])
                rewards_BT[b, token] += amount
                rewards_BT[b, last] -= amount


def _spans(turn: Turn, tags: Tags, share: float) -> list[tuple[int, float]]:
    """End in characters and amount of each reward that is earned inside a response."""
    found = list(turn.placed or ())
    judged = {
        tags.observation: turn.rewards.judge_observation,
        tags.prediction: turn.rewards.judge_prediction,
    }
    for tag, amount in judged.items():
        end = turn.response_text.rfind(f"</{tag}>")
        if amount and end > 0:
            found.append((end, share * amount))
    return found
