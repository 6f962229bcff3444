"""Where VAGEN's main branch has `GymImageEnv`."""

from vagen.envs.gym_image_env import GymImageEnv

__all__ = ["GymImageEnv"]
