"""A whole training that takes seconds, as the file that a user would write."""

from pathlib import Path

from vagen.storage import read_manifest


def digests(run: Path) -> dict[str, str]:
    """Digest of everything that was committed, but the registration, which names an MLflow run."""
    return {
        path.parent.relative_to(run).as_posix(): read_manifest(path.parent).digest
        for path in sorted(run.rglob("manifest.json"))
        if not path.is_relative_to(run / "registration")
    }


def lake_yaml(*, test_size: int = 8, warm_start_steps: int = 4, test_freq: int = 0) -> str:
    """Two iterations of FrozenLake."""
    return f"""\
name: lake
preset: vagen_full
seed: 3
envs:
  lake:
    env_name: FrozenLake
    env_config: {{prompt_detail: brief, max_actions_per_step: 1}}
    train_size: 64
    val_size: 4
    test_size: {test_size}
data: {{train_batch_size: 8, max_prompt_length: 128, max_response_length: 32,
       max_trajectory_length: 384}}
rollout_manager: {{max_turns: 3}}
actor_rollout_ref:
  actor: {{ppo_mini_batch_size: 4, optim: {{lr: 1.0e-3}}}}
critic: {{optim: {{lr: 1.0e-3}}}}
warm_start: {{steps: {warm_start_steps}, batch_size: 8}}
trainer: {{total_training_steps: 2, test_freq: {test_freq}}}
"""
