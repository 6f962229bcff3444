"""VAGEN's interface of an asynchronous environment with images.

Subclasses run here unchanged: `env_name: GymImageEnv` and `env_config: {entry_point:
"module:Class", kwargs: {...}}` (see `vagen.envs.adapters.gym_image`).
"""

from vagen.envs.gym_base_env import GymBaseEnv


class GymImageEnv(GymBaseEnv):
    """An environment whose observations are texts with images.

    An observation is `{"obs_str": str, "multi_modal_input": {"<image>": [PIL.Image.Image, ...]}}`:
    `obs_str` has `<image>` once per image; without images the second key is optional.
    `reset(seed)` returns `(observation, info)`, `step(response)` returns
    `(observation, reward, done, info)`, where `info["success"]` says whether the task is solved,
    and `system_prompt()` returns an observation without images.
    """
