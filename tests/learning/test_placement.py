"""Rewards on the tokens that earned them."""

import numpy as np
import pytest
import torch

from vagen.learning.placement import move_to_spans
from vagen.rollout.types import TokenRow, Trajectory, Turn, TurnRewards

SAID = "<think><observation>left</observation><prediction>up</prediction></think>"


def played(*texts: str, shift: int = 3) -> Trajectory:
    """An episode whose tokens are characters, after a prompt of so many."""
    ids = [*range(shift), *(ord(c) for text in texts for c in text)]
    turn_index = [-1] * shift + [k for k, text in enumerate(texts) for _ in text]
    row = TokenRow(
        trajectory_id="0",
        row_index=0,
        input_ids=np.array(ids, np.int32),
        loss_mask=np.arange(len(ids)) >= shift,
        turn_index=np.array(turn_index, np.int16),
        rollout_logprobs=np.zeros(len(ids), np.float32),
        images=[],
    )
    rewards = TurnRewards(env=1.0, format=0.5, judge_observation=0.25, judge_prediction=0.125)
    turns = [Turn("0", k, text, None, rewards, None, {}, {}) for k, text in enumerate(texts)]
    names = ("group_id", "config_id", "env_name", "env_config_digest", "seed", "level_hash")
    ended = {"terminated": True, "truncated": False, "success": True, "status": None, "score": 0}
    fields = {**dict.fromkeys(names), **ended, "config_id": "game"}
    return Trajectory(trajectory_id="0", **fields, turns=turns, rows=[row])


@pytest.mark.parametrize("budget", [None, 3])
def test_judged_texts_get_their_rewards(make_experiment, budget):
    config = make_experiment(
        f"rollout_manager.turn_reward_budget={budget or 'null'}",
        "rollout_manager.reward_placement=span",
    )
    episode = played(SAID, "no tags")
    episode.turns[0].placed = [(8, 0.5), (99, 2.0)]
    (row,) = episode.rows
    rewards = torch.zeros(1, len(row.input_ids))
    move_to_spans(
        config, rewards, [row], [episode], lambda ids: "".join(chr(i) for i in ids if i < 128)
    )
    share = 1.0 if budget is None else budget / 2
    expected = np.zeros(len(row.input_ids))
    inside = {8: 0.5, SAID.index("</o"): 0.25 * share, SAID.index("</p"): 0.125 * share}
    for end, paid in inside.items():
        expected[3 + end - 1] = paid
    expected[3 + len(SAID) - 1] = -sum(inside.values())
    np.testing.assert_allclose(rewards[0], expected)
