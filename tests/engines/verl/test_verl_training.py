"""Whole iterations on the distributed engine."""

import itertools

import numpy as np
import pytest

from vagen.models import load_model
from vagen.rollout.batch import TrajectoryBatch
from vagen.train import iterate

pytestmark = pytest.mark.slow

JUDGED = (
    "judge.use_state_reward=true",
    "envs.game.env_config.prompt_format=grounding_worldmodeling",
)
WORDS = ("render_mode=text", "prompt_format=free_think", "prompt_detail=brief")
GROUPS = ("preset=grpo_mask", "rollout_manager.n_trajectory=2", "data.train_batch_size=3")
CASES = {
    "vagen_full": ("preset=vagen_full", "data.max_response_length=32", *JUDGED),
    "one_step_off": (
        *GROUPS,
        "rollout_manager.one_step_off=true",
        "actor_rollout_ref.actor.tis_imp_ratio_cap=2.0",
    ),
    "qwen2_5_vl": (
        "preset=vagen_full",
        "warm_start.steps=0",
        *(f"envs.words.{name}_size=6" for name in ("train", "val", "test")),
        "envs.words.env_name=FrozenLake",
        *(f"envs.words.env_config.{option}" for option in WORDS),
    ),
}
"""The last one plays levels with and without pictures."""


def sampled(batch: TrajectoryBatch, of: str) -> np.ndarray:
    """A field or column at the sampled tokens of a batch."""
    rows = [row for trajectory in batch.trajectories for row in trajectory.rows]
    return np.concatenate(
        [
            (row.columns[of] if of in row.columns else getattr(row, of))[row.loss_mask]
            for row in rows
        ]
    )


@pytest.mark.parametrize("case", CASES)
def test_two_iterations(run_of, case):
    """Real episodes, and weights that change and are played with in the next iteration."""
    run = run_of(*CASES[case], "trainer.total_training_steps=2")
    with run.at_work():
        iterate(run, 0, 2)
    assert len(run.iteration_metrics()) == 2
    weights = [load_model(run.initial_model()).model.state_dict()]
    weights += [load_model(run.checkpoint(i) / "policy").model.state_dict() for i in range(2)]
    for before, after in itertools.pairwise(weights):
        assert any((before[name] != after[name]).any() for name in before)
    for iteration in range(2):
        batch = TrajectoryBatch.load(run.step(iteration, "advantage"))
        assert np.isfinite(sampled(batch, "advantages")).all()
        played, learnt = sampled(batch, "rollout_logprobs"), sampled(batch, "old_logprobs")
        if case == "one_step_off" and iteration == 1:
            assert batch.policy_version == "warm_start"
            assert np.abs(played - learnt).max() > 1e-3
            continue
        # The trainer's weights say what the servers' said: they are the same ones.
        np.testing.assert_allclose(np.exp(played), np.exp(learnt), atol=1e-3)
        assert np.corrcoef(np.exp(played), np.exp(learnt))[0, 1] >= 0.99
