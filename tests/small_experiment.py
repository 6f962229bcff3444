"""An experiment of a few short episodes, for tests that change it before it is read."""

from typing import Any


def experiment_tree(model: str = "tiny:vl", env_name: str = "FrozenLake", **env_config: Any):
    """An experiment of a few short episodes, as its YAML file would say it.

    The warm start ends early: answers differ in length, some are cut, some are no answers.
    """
    return {
        "name": "test",
        "preset": "vagen_full",
        "seed": 7,
        "envs": {
            "game": {
                "env_name": env_name,
                "env_config": {
                    "render_mode": "text" if model == "tiny:text" else "vision",
                    "prompt_format": "free_think",
                    "prompt_detail": "brief",
                    "max_actions_per_step": 1,
                    **env_config,
                },
                "train_size": 24,
                "val_size": 4,
                "test_size": 6,
            }
        },
        "data": {
            "train_batch_size": 6,
            "max_prompt_length": 128,
            "max_response_length": 16,
            "max_trajectory_length": 320,
        },
        "judge": {"use_state_reward": False},
        "rollout_manager": {"max_turns": 3},
        "actor_rollout_ref": {
            "model": {"path": model},
            "actor": {"optim": {"lr": 1.0e-3}, "ppo_mini_batch_size": 3},
            "rollout": {
                "temperature": 1.0,
                "top_p": 1.0,
                "max_concurrency": 4,
                "val_kwargs": {"temperature": 1.0, "top_p": 1.0},
            },
        },
        "critic": {"optim": {"lr": 1.0e-2}},
        "warm_start": {"steps": 30, "batch_size": 8, "lr": 2.0e-3},
        "trainer": {"total_training_steps": 3},
    }
