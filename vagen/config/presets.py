"""Algorithm presets: the values that VAGEN's paper, its March 2025 release and RAGEN trained with.

A preset sets what distinguishes its algorithm and nothing else; the schema's defaults hold what all
share (learning rates 1e-6 and 1e-5, KL .001 in the reward, entropy .001, clip .2, three turns). The
experiment file and the overrides go before a preset. Reproductions set `truncation_bootstrap` to
false: the originals take the turn cap for the end of the world.

Under `envs`, `EVERY_ENV` stands for each environment of the experiment; what stands under the name
of an environment (`Sokoban`) is laid over it where it is played.
"""

import copy
from dataclasses import dataclass
from typing import Any

EVERY_ENV = "*"


def _prompted(prompt_format: str, **options: Any) -> dict[str, Any]:
    return {EVERY_ENV: {"env_config": {"prompt_format": prompt_format, **options}}}


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
    high_level_lam: float | None = None,
    loss_mask: bool,
    gae_mask: bool,
    turn_reward: bool,
    state_reward: bool = False,
    batch: tuple[int, int] = (128, 1),
    reward_mask: bool = False,
    prompt_format: str = "grounding_worldmodeling",
) -> Preset:
    """A row of the paper's comparison; all with gamma and lambda 1 per token."""
    levels, group = batch
    values: dict[str, Any] = {
        "envs": _prompted(prompt_format),
        "data": {"train_batch_size": levels},
        "algorithm": {
            "adv_estimator": estimator,
            "gamma": 1.0,
            "lam": 1.0,
            "high_level_gamma": high_level_gamma,
            "high_level_lam": high_level_lam,
            "truncation_bootstrap": False,
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
        # The paper describes states as dictionaries there (its table 4).
        structured = {"prompt_format": f"{prompt_format}_structured"}
        values["envs"]["PrimitiveSkill"] = {"env_config": structured}
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

    Its history window of five turns never closes within its three turns, so none is set. Answers
    are `<think>...</think><ans>...</ans>`; Sokoban is 6 x 6 with one box and at most six moves.
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
    preset.values["envs"] = {
        **_prompted("free_think", tags={"answer": "ans"}),
        "Sokoban": {
            "env_config": {"dim_room": [6, 6], "num_boxes": 1, "max_solution_length": 6},
        },
    }
    return preset


def _grpo_mask(summary: str, prompt_format: str) -> Preset:
    return _paper(
        summary,
        estimator="grpo",
        high_level_gamma=1.0,
        loss_mask=True,
        gae_mask=True,
        turn_reward=False,
        batch=(16, 8),
        prompt_format=prompt_format,
    )


def _turn_ppo_mask(summary: str, prompt_format: str) -> Preset:
    return _paper(
        summary,
        estimator="turn_wise_gae",
        high_level_gamma=1.0,
        loss_mask=True,
        gae_mask=True,
        turn_reward=True,
        batch=(64, 2),
        reward_mask=True,
        prompt_format=prompt_format,
    )


def _trico_turn_wise(summary: str, *, turn_reward: bool) -> Preset:
    return _release(
        summary,
        estimator="turn_wise_gae",
        loss_mask=True,
        gae_mask=True,
        turn_reward=turn_reward,
        reward_mask=True,
    )


def _starpo(summary: str, *, kl_coef: float, clip_high: float, keep: float | None) -> Preset:
    """RAGEN's StarPO with PPO inside: 8 levels of 16 trajectories, one reward per trajectory.

    Five turns of up to five actions, ten in all; the layout earns nothing, its lack costs .1.
    """
    kept = {"strategy": "top_k", "value": keep} if keep else {"strategy": "none"}
    sampled = {"temperature": 1.0, "top_p": 1.0}
    values: dict[str, Any] = {
        "envs": {
            **_prompted(
                "free_think",
                max_actions_per_step=5,
                max_steps=10,
                reward_overrides={"format": 0.0, "format_penalty": -0.1},
            ),
            **{name: {"env_config": {"max_actions_per_step": 1}} for name in ("SVG", "Blackjack")},
        },
        "data": {"train_batch_size": 8},
        "algorithm": {
            "adv_estimator": "masked_gae",
            "gamma": 1.0,
            "lam": 1.0,
            "kl_ctrl": {"kl_coef": kl_coef},
            "truncation_bootstrap": False,
            "rollout_filter": kept,
        },
        "rollout_manager": {
            "max_turns": 5,
            "n_trajectory": 16,
            "use_loss_mask": True,
            "use_gae_mask": True,
            "use_multi_turn_reward": False,
        },
        "judge": {"use_state_reward": False},
        "actor_rollout_ref": {
            "actor": {"clip_ratio_low": 0.2, "clip_ratio_high": clip_high},
            "rollout": sampled | {"val_kwargs": {"temperature": 0.5, "top_p": 1.0}},
        },
    }
    return Preset(summary, values)


PRESETS: dict[str, Preset] = {
    "vanilla_ppo": _paper(
        "the paper's PPO without masks, turn-wise as in its script",
        estimator="turn_wise_gae",
        high_level_gamma=1.0,
        loss_mask=False,
        gae_mask=False,
        turn_reward=False,
        reward_mask=True,
    ),
    "token_ppo": _paper(
        "token-level PPO without masks; not in the paper",
        estimator="gae",
        high_level_gamma=1.0,
        loss_mask=False,
        gae_mask=False,
        turn_reward=False,
    ),
    "grpo_mask": _grpo_mask(
        "group-relative advantages on sampled tokens, prompt of the paper's table",
        "grounding_worldmodeling",
    ),
    "grpo_mask_script": _grpo_mask(
        "`grpo_mask` with the prompt of the released script", "free_think"
    ),
    "turn_ppo_mask": _turn_ppo_mask(
        "one advantage per turn, prompt of the paper's table", "grounding_worldmodeling"
    ),
    "turn_ppo_mask_script": _turn_ppo_mask(
        "`turn_ppo_mask` with the prompt of the released script", "free_think"
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
    "vagen_full_turn_lambda": _paper(
        "`vagen_full` with lambda .5 between turns",
        estimator="bi_level_gae",
        high_level_gamma=0.95,
        high_level_lam=0.5,
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
    "trico_turn_wise": _trico_turn_wise(
        "TRICO with turn-wise GAE, turn rewards on (its script)", turn_reward=True
    ),
    "trico_turn_wise_label": _trico_turn_wise(
        "TRICO with turn-wise GAE, turn rewards off (its label)", turn_reward=False
    ),
    "starpo": _starpo(
        "RAGEN's trajectory-level PPO as in its paper", kl_coef=0.001, clip_high=0.2, keep=None
    ),
    "starpo_s": _starpo(
        "stabilised StarPO: uncertain levels only, no KL, clip-higher",
        kl_coef=0.0,
        clip_high=0.28,
        keep=0.25,
    ),
}


def preset_values(name: str, env_names: dict[str, str]) -> dict[str, Any]:
    """The values of a preset for an experiment's environments.

    Args:
        name: Name of the preset.
        env_names: Name of each environment (`Sokoban`) by its id in the experiment.
    """
    values = copy.deepcopy(PRESETS[name].values)
    given = values.pop("envs")
    every = given[EVERY_ENV]["env_config"]
    values["envs"] = {
        env_id: {"env_config": copy.deepcopy({**every, **own.get("env_config", {})})}
        for env_id, env_name in env_names.items()
        for own in [given.get(env_name, {})]
    }
    return values
