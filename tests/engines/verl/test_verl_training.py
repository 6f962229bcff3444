"""Whole iterations on the distributed engine: Qwen2.5-VL. `test_verl_apart` has Qwen3-VL's."""

import pytest
from ray_cluster import ray_files
from verl_stories import two_iterations

pytestmark = pytest.mark.slow

WORDS = ("render_mode=text", "prompt_format=free_think", "prompt_detail=brief")


def test_two_iterations_of_qwen25vl_with_a_frozen_tower(run_of):
    """Levels with and without pictures, which ranks get as features; weights that change."""
    run = run_of(
        "preset=vagen_full",
        "actor_rollout_ref.model.freeze_vision_tower=true",
        "warm_start.steps=0",
        "algorithm.overlong.buffer_len=8",  # what is learnt where nothing is won
        *(f"envs.words.{name}_size=6" for name in ("train", "val", "test")),
        "envs.words.env_name=FrozenLake",
        *(f"envs.words.env_config.{option}" for option in WORDS),
        "trainer.total_training_steps=2",
        infra=["verl.ray_address=null"],  # as users have it without a cluster
    )
    with ray_files():
        batches = two_iterations(run)
    shown = {bool(row.images) for b in batches for t in b.trajectories for row in t.rows}
    assert shown == {False, True}
