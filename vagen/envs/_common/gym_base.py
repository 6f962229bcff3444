"""Where VAGEN's main branch has `GymBaseEnv`."""

from vagen.envs.gym_base_env import GymBaseEnv

__all__ = ["GymBaseEnv"]
