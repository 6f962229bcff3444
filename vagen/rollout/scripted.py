"""Episodes with responses written by code: experts, constant responses and exploits."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from PIL.Image import Image

from vagen.config.schema import ExperimentConfig
from vagen.envs.base import Observation
from vagen.envs.parsing import ParsedResponse
from vagen.rollout.contexts import SUMMARY_REQUEST
from vagen.rollout.conversation import ChatRenderer
from vagen.rollout.types import (
    Generation,
    Sampling,
    Status,
    Trajectory,
    Turn,
    TurnMetrics,
    TurnRewards,
)
from vagen.service import AsyncEnv, EnvironmentLost, EnvironmentRaised


class TextEnv(Protocol):
    """The part of an environment that is used here; from `vagen.service`, wherever it runs."""

    def reset(self, *, seed: int) -> tuple[Observation, dict[str, Any]]: ...  # noqa: D102
    def step(self, action: str, /) -> tuple[Any, Any, bool, bool, dict[str, Any]]: ...  # noqa: D102
    def expert_response(self) -> str: ...  # noqa: D102


Respond = Callable[[TextEnv, list[Turn]], str]
"""Returns the response for an environment and its turns so far."""


def play_scripted(
    env: TextEnv, respond: Respond, *, config_id: str, env_name: str, seed: int, max_turns: int
) -> Trajectory:
    """Plays one episode without tokens: it has turns but no rows.

    If its environment fails, it ends with status `env_error`.

    Args:
        env: The environment, which is reset.
        respond: Returns each response.
        config_id: Id of the environment in the experiment.
        env_name: Name of the environment.
        seed: Seed of the level.
        max_turns: Number of turns after which the episode is truncated.
    """
    turns: list[Turn] = []
    name = f"{config_id}-{seed}"
    level_hash, error = "", None
    terminated = truncated = success = False
    try:
        _, info = env.reset(seed=seed)
        level_hash = info["level_hash"]
        while not (terminated or truncated):
            state, response = info["state"], respond(env, turns)
            _, _, terminated, truncated, info = env.step(response)
            turns.append(
                Turn(
                    trajectory_id=name,
                    turn_index=len(turns),
                    response_text=response,
                    parsed=ParsedResponse.from_dict(info["parsed"]),
                    rewards=TurnRewards(**info["rewards"]),
                    metrics=TurnMetrics(**info["metrics"]),
                    state=state,
                    next_state=info["state"],
                )
            )
            success = info["success"]
            truncated = truncated or len(turns) == max_turns
    except (EnvironmentLost, EnvironmentRaised) as failure:
        error, success = str(failure), False
    return Trajectory(
        trajectory_id=name,
        group_id=name,
        config_id=config_id,
        env_name=env_name,
        env_config_digest="",
        seed=seed,
        level_hash=level_hash,
        terminated=terminated,
        truncated=truncated and not terminated,
        success=success,
        status=Status.ENV_ERROR if error else Status.OK,
        score=sum(turn.rewards.env + turn.rewards.format for turn in turns),
        turns=turns,
        rows=[],
        error=error,
    )


def play_expert(
    config: ExperimentConfig, config_id: str, env: TextEnv, seeds: Iterable[int]
) -> list[Trajectory]:
    """Plays the expert on the levels of these seeds, with the experiment's limits."""
    return [
        play_scripted(
            env,
            lambda env, _: env.expert_response(),
            config_id=config_id,
            env_name=config.envs[config_id].env_name,
            seed=seed,
            max_turns=config.rollout_manager.max_turns,
        )
        for seed in seeds
    ]


class ExpertPolicy:
    """Responds with `env.expert_response()`, or with `env.expert_summary()` to a summary request.

    Log-probabilities are 0.
    """

    def __init__(self, renderer: ChatRenderer):
        self.renderer, self.processor = renderer, renderer.processor
        self.request = renderer.following(SUMMARY_REQUEST).ids
        self.envs: dict[str, AsyncEnv] = {}
        """Environment of each trajectory by id; set before the episode starts."""

    async def generate(
        self, *, request_id: str, prompt_ids: list[int], images: list[Image], sampling: Sampling
    ) -> Generation:
        """The expert's response with the end-of-turn token."""
        trajectory_id, _, _ = request_id.rpartition("/")
        env = self.envs[trajectory_id]
        if prompt_ids[-len(self.request) :] == self.request:
            response = await env.expert_summary()
        else:
            response = await env.expert_response()
        ids = self.renderer.answer(response)
        return Generation(ids, [0.0] * len(ids), "stop")

    def release(self, request_id: str) -> None:
        """Does nothing."""
