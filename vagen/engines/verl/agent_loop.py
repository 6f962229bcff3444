"""Our episodes as verl's agent loop: the shared episode runner in the processes that play.

An episode runs to its end, is judged while others are still played, and goes into the transfer
queue: a row of tokens per context, and the whole trajectory with the first of them.
"""

import asyncio
import functools
import traceback
from typing import Any

import numpy as np
import ray
import torch
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from vagen.config.infra import InfraConfig
from vagen.config.schema import ExperimentConfig
from vagen.engines.verl.policy import ServerClient, ServerPolicy
from vagen.engines.verl.wire import Order, pack_trajectory
from vagen.judge.scoring import Scorer, cache_folder
from vagen.learning.masks import turn_end_mask
from vagen.learning.rewards import turn_reward
from vagen.models.processor import load_processor
from vagen.rollout.conversation import RenderError
from vagen.rollout.play import make_environment, make_runner
from vagen.rollout.runner import run_episode
from vagen.rollout.types import TokenRow, Trajectory
from vagen.service import Environments, environments_of


class PlayClient(ServerClient):
    """verl's client, and what else the episodes of one process share."""

    @functools.cached_property
    def experiment(self) -> ExperimentConfig:
        """As `verl_config` put it into verl's configuration."""
        return ExperimentConfig.model_validate(self._custom["experiment"])

    @functools.cached_property
    def infra(self) -> InfraConfig:
        """As `verl_config` put it into verl's configuration."""
        return InfraConfig.model_validate(self._custom["infra"])

    @functools.cached_property
    def environments(self) -> Environments:
        """Where environments run; their worker processes are this process's share."""
        return environments_of(self.infra.environments, sharers=self.infra.verl.agent_workers)

    @functools.cached_property
    def _custom(self) -> Any:
        """Our part of verl's configuration."""
        return OmegaConf.to_container(self.config.actor_rollout_ref.rollout.custom, resolve=True)

    @functools.cached_property
    def processor(self) -> Any:
        """Of the policy's model."""
        return load_processor(self.config.actor_rollout_ref.model.path)

    @functools.cached_property
    def scorer(self) -> Scorer:
        """The experiment's judges, with a process's share of their endpoints' limits."""
        workers = self.config.actor_rollout_ref.rollout.agent.num_workers
        return Scorer(self.experiment, cache=cache_folder(self.infra), share=workers)

    @functools.cached_property
    def gate(self) -> asyncio.Semaphore:
        """This process's share of the episodes that are alive at once."""
        live = self.experiment.actor_rollout_ref.rollout.max_concurrency
        return asyncio.Semaphore(
            -(-live // self.config.actor_rollout_ref.rollout.agent.num_workers)
        )

    async def play(self, order: Order) -> tuple[Trajectory, dict[str, bytes]]:
        """Plays and judges one episode; returns it and its frames as PNG by digest."""
        runner = make_runner(
            self.experiment,
            policy=ServerPolicy(self, self.processor),
            processor=self.processor,
            sampling=order.sampling,
        )
        async with self.gate:
            trajectory = await run_episode(
                runner,
                order.spec,
                lambda spec: make_environment(
                    self.experiment, spec, order.split, self.environments
                ),
            )
        await self.scorer.score(trajectory)
        return trajectory, runner.images


class EpisodeRow(AgentLoopOutput):
    """A row of an episode as verl takes it: one token of prompt, the rest is response."""

    token_rewards: list[float]
    """Of each token of the response: a turn's reward is on the turn's last token."""
    trajectory: bytes = b""
    """`pack_trajectory` of the whole episode in its first row, nothing in the others."""
    failure: str = ""
    """What went wrong, if the episode could not be played."""

    def as_dict(self) -> dict[str, Any]:
        """The row's fields in the transfer queue."""
        fields = super().as_dict()
        fields["rm_scores"] = torch.tensor(fields.pop("token_rewards"), dtype=torch.float32)
        fields["failure"] = self.failure
        # Tensors travel as they are, anything else is pickled; none may be empty.
        data = np.frombuffer(self.trajectory or b"\0", np.uint8)
        fields["trajectory"] = torch.from_numpy(data.copy())
        return fields


class VagenAgentLoop(AgentLoopBase):
    """Plays the episode that the field `order` describes, an `Order` as JSON."""

    def __init__(self, *, server_manager: PlayClient, **unused: Any):
        """Takes the client alone; the base would prepare a rendering of conversations of its own.

        Args:
            server_manager: What verl calls its client.
            unused: Tokenizer, tools and the like.
        """
        self.client = server_manager

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> list[EpisodeRow]:
        """Plays the episode, judges it and returns its rows.

        An environment that fails makes a trajectory with that status. Anything else that fails goes
        to the driver, which raises it there.
        """
        try:
            trajectory, images = await self.client.play(Order.from_json(fields["order"]))
        except RenderError as error:
            return [_no_tokens(failure=f"{RenderError.__name__}: {error}")]
        except Exception:  # verl would log it in this process and tell the driver nothing
            return [_no_tokens(failure=traceback.format_exc())]
        data = pack_trajectory(trajectory, images)
        rows = [row_output(trajectory, row) for row in trajectory.rows] or [_no_tokens()]
        rows[0].trajectory = data
        return rows


def row_output(trajectory: Trajectory, row: TokenRow) -> EpisodeRow:
    """A row with the rewards of the turns that were sampled in it."""
    mask, turns = torch.from_numpy(row.loss_mask), torch.from_numpy(row.turn_index)
    rewards = torch.zeros(len(mask), dtype=torch.float32)
    by_turn = {turn.turn_index: turn_reward(turn.rewards) for turn in trajectory.turns}
    for place in turn_end_mask(mask, turns).nonzero()[:, 0].tolist():
        rewards[place] = by_turn[int(turns[place])]
    return EpisodeRow(
        prompt_ids=row.input_ids[:1].tolist(),
        response_ids=row.input_ids[1:].tolist(),
        response_mask=row.loss_mask[1:].astype(int).tolist(),
        response_logprobs=row.rollout_logprobs[1:].tolist(),
        token_rewards=rewards[1:].tolist(),
        reward_score=trajectory.score,
        num_turns=len(trajectory.turns),
        metrics=AgentLoopMetrics(),
        extra_fields={"reward_extra_info": {"success": float(trajectory.success)}},
    )


def _no_tokens(*, failure: str = "") -> EpisodeRow:
    """For an episode without a row: verl drops one that returns nothing."""
    return EpisodeRow(
        prompt_ids=[0],
        response_ids=[0],
        response_mask=[0],
        response_logprobs=[0.0],
        token_rewards=[0.0],
        reward_score=0.0,
        metrics=AgentLoopMetrics(),
        extra_fields={"reward_extra_info": {"success": 0.0}},
        failure=failure,
    )


_Worker: Any = AgentLoopWorkerTQ


class PlayWorker(_Worker.__ray_metadata__.modified_class):
    """verl's worker without a multi-modal processor.

    With one it would decode every row again and process its images, of which we send none: the
    trainer reads PNG bytes of its own.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.processor = None


class PlayManager(AgentLoopManagerTQ):
    """Launches the processes that play, and hands them orders."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(PlayWorker)
