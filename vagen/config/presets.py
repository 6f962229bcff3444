"""Algorithm presets: the values that VAGEN's paper and its March 2025 release trained with.

A preset sets what distinguishes its algorithm and nothing else; the schema's defaults hold what all
share (learning rates 1e-6 and 1e-5, KL .001 in the reward, entropy .001, clip .2, three turns). The
experiment file and the overrides go before a preset.

Under `envs`, the id `EVERY_ENV` stands for each environment of the experiment.
"""

import copy
from dataclasses import dataclass
from typing import Any

EVERY_ENV = "*"

_WORLD_MODELING = {EVERY_ENV: {"env_config": {"prompt_format": "grounding_worldmodeling"}}}


@dataclass(frozen=True, slots=True)
class Preset:
    """Defaults of an experiment."""

    summary: str
    values: dict[str, Any]

    @property
    def estimator(self) -> str:
        """Name of its advantage estimator."""
        return self.values["algorithm"]["adv_estimator"]


def _paper(
    summary: str,
    *,
    estimator: str,
    high_level_gamma: float,
    loss_mask: bool,
    gae_mask: bool,
    turn_reward: bool,
    state_reward: bool = False,
    batch: tuple[int, int] = (128, 1),
    reward_mask: bool = False,
) -> Preset:
    """A row of the paper's comparison; all with gamma and lambda 1 per token."""
    levels, group = batch
    values = {
        "envs": _WORLD_MODELING,
        "data": {"train_batch_size": levels},
        "algorithm": {
            "adv_estimator": estimator,
            "gamma": 1.0,
            "lam": 1.0,
            "high_level_gamma": high_level_gamma,
        },
        "rollout_manager": {
            "n_trajectory": group,
            "use_loss_mask": loss_mask,
            "use_gae_mask": gae_mask,
            "use_multi_turn_reward": turn_reward,
        },
        "judge": {"use_state_reward": state_reward},
        "critic": {"use_reward_mask": reward_mask},
    }
    if state_reward:
        values["judge"] |= {"observation_weight": 0.5, "prediction_weight": 0.5}
    return Preset(summary, values)


def _release(
    summary: str,
    *,
    estimator: str,
    loss_mask: bool,
    gae_mask: bool,
    turn_reward: bool = False,
    batch: tuple[int, int] = (128, 1),
    reward_mask: bool = False,
) -> Preset:
    """A script of the March 2025 release.

    Its history window of five turns never closes within its three turns, so none is set.
    """
    preset = _paper(
        summary,
        estimator=estimator,
        high_level_gamma=0.95,
        loss_mask=loss_mask,
        gae_mask=gae_mask,
        turn_reward=turn_reward,
        batch=batch,
        reward_mask=reward_mask,
    )
    preset.values["data"] |= {
        "max_prompt_length": 1024,
        "max_response_length": 128,
        "max_trajectory_length": 1800,
    }
    preset.values["rollout_manager"]["max_turns"] = 3
    del preset.values["envs"]
    return preset


PRESETS: dict[str, Preset] = {
    "vanilla_ppo": _paper(
        "PPO without masks; as released it is turn-wise, `rico_gae` is the token-wise baseline",
        estimator="turn_wise_gae",
        high_level_gamma=1.0,
        loss_mask=False,
        gae_mask=False,
        turn_reward=False,
        reward_mask=True,
    ),
    "grpo_mask": _paper(
        "group-relative advantages on sampled tokens (the released script prompts with free_think)",
        estimator="grpo",
        high_level_gamma=1.0,
        loss_mask=True,
        gae_mask=True,
        turn_reward=False,
        batch=(16, 8),
    ),
    "turn_ppo_mask": _paper(
        "one advantage per turn (the released script prompts with free_think)",
        estimator="turn_wise_gae",
        high_level_gamma=1.0,
        loss_mask=True,
        gae_mask=True,
        turn_reward=True,
        batch=(64, 2),
        reward_mask=True,
    ),
    "vagen_base": _paper(
        "masked GAE, world-modeling prompt, no state reward",
        estimator="masked_gae",
        high_level_gamma=1.0,
        loss_mask=True,
        gae_mask=True,
        turn_reward=False,
    ),
    "vagen_full": _paper(
        "bi-level GAE, turn rewards and world-modeling reward",
        estimator="bi_level_gae",
        high_level_gamma=0.95,
        loss_mask=True,
        gae_mask=True,
        turn_reward=True,
        state_reward=True,
    ),
    "rico_gae": _release(
        "token-wise GAE over every token, no masks",
        estimator="gae",
        loss_mask=False,
        gae_mask=False,
    ),
    "rico_grpo": _release(
        "group-relative advantages, no masks",
        estimator="grpo",
        loss_mask=False,
        gae_mask=False,
        batch=(16, 8),
    ),
    "rico_grpo_mask_loss": _release(
        "group-relative advantages with loss mask",
        estimator="grpo",
        loss_mask=True,
        gae_mask=False,
        batch=(16, 8),
    ),
    "aico": _release(
        "masked GAE with loss mask",
        estimator="masked_gae",
        loss_mask=True,
        gae_mask=True,
    ),
    "aico_no_loss_mask": _release(
        "AICO without the loss mask",
        estimator="masked_gae",
        loss_mask=False,
        gae_mask=True,
    ),
    "aico_no_gae_mask": _release(
        "AICO without the advantage mask",
        estimator="gae",
        loss_mask=True,
        gae_mask=False,
    ),
    "trico": _release(
        "bi-level GAE with turn rewards",
        estimator="bi_level_gae",
        loss_mask=True,
        gae_mask=True,
        turn_reward=True,
    ),
    "trico_no_turn_reward": _release(
        "TRICO with the summed reward on the last token",
        estimator="bi_level_gae",
        loss_mask=True,
        gae_mask=True,
    ),
    "trico_no_bi_level": _release(
        "TRICO with masked GAE: AICO plus turn rewards",
        estimator="masked_gae",
        loss_mask=True,
        gae_mask=True,
        turn_reward=True,
    ),
    "trico_turn_wise": _release(
        "TRICO with turn-wise GAE",
        estimator="turn_wise_gae",
        loss_mask=True,
        gae_mask=True,
        turn_reward=True,
        reward_mask=True,
    ),
}


def preset_values(name: str, env_ids: list[str]) -> dict[str, Any]:
    """The values of a preset with `EVERY_ENV` spread over the experiment's environments."""
    values = copy.deepcopy(PRESETS[name].values)
    every = values.pop("envs", {}).get(EVERY_ENV)
    if every:
        values["envs"] = {env_id: copy.deepcopy(every) for env_id in env_ids}
    return values
