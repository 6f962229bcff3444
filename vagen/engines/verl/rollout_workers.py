"""Players: Ray actors that each play and judge a share of the episodes.

They call verl's rollout servers, `vagen_torch` or vLLM.
"""

import asyncio
import io
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import ray
from PIL.Image import Image
from ray.actor import ActorHandle
from ray.exceptions import RayTaskError
from verl.workers.rollout.llm_server import LLMServerClient

from vagen.config.infra import InfraConfig
from vagen.config.schema import ExperimentConfig, SamplingConfig
from vagen.engines.base import Images
from vagen.engines.verl.errors import RolloutError
from vagen.engines.verl.mapping import TORCH_ROLLOUT, seeds_requests
from vagen.judge.scoring import Scorer, cache_folder
from vagen.models.processor import Processor, load_processor
from vagen.rollout.batch_tables import decode, encode
from vagen.rollout.conversation import RenderError
from vagen.rollout.play import check_failures, make_environment, make_runner
from vagen.rollout.runner import EpisodeSpec, run_episode
from vagen.rollout.types import Generation, Sampling, Status, Trajectory
from vagen.service import environments_of

POLL_SECONDS = 0.1
"""Seconds between collections of ended episodes."""
_batches = itertools.count()
"""Counter of played batches."""


BANNED_LOGIT = -100.0
"""vLLM's lowest logit bias: a probability of about e^-100, which is 0 in float32."""


class ServerClient(LLMServerClient):
    """Client of verl's servers that sends a conversation's requests to one server.

    Our server identifies conversations by id and caches them until release. vLLM matches prefixes
    itself and gets an id per request.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._homes: dict[str, ActorHandle] = {}

    @property
    def _keeps_conversations(self) -> bool:
        return self.config.actor_rollout_ref.rollout.name == TORCH_ROLLOUT

    def _vllm_request_id(self, request_id: str) -> str:
        return request_id if self._keeps_conversations else super()._vllm_request_id(request_id)

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, ActorHandle]:
        server_id, server = await super()._acquire_server(request_id, **extra)
        if self._keeps_conversations:
            self._homes[request_id] = server
        return server_id, server

    def release(self, request_id: str) -> None:
        """Ends the conversation; does not wait for the server."""
        server = self._homes.pop(request_id, None)
        if server is not None:
            server.release.remote(request_id)


class ServerPolicy:
    """Implements `vagen.rollout.types.Policy`.

    Log-probabilities are at the sampling temperature without banned ids. vLLM also applies top-p
    and top-k first (`logprobs_mode=processed_logprobs`; its other mode ignores temperature and
    bans), so with those they are of the truncated distribution.
    """

    def __init__(self, client: ServerClient, processor: Processor, *, seeds: bool):
        """Prepares a policy.

        Args:
            client: Client of the servers, shared by a process's episodes.
            processor: Processor of the policy's model.
            seeds: Whether vLLM gets the seeds of requests.
        """
        self.client = client
        self.processor = processor
        self.seeds = seeds
        self.own_server = client.config.actor_rollout_ref.rollout.name == TORCH_ROLLOUT

    async def generate(
        self, *, request_id: str, prompt_ids: Sequence[int], images: list[Image], sampling: Sampling
    ) -> Generation:
        """Continues `prompt_ids`; see `Policy.generate`."""
        output = await self.client.generate(
            request_id,
            prompt_ids=list(prompt_ids),
            sampling_params=asdict(sampling) if self.own_server else self._vllm(sampling),
            image_data=list(images) or None,
        )
        stop = output.token_ids[-1] == self.processor.eos_id
        return Generation(
            list(output.token_ids), list(output.log_probs or []), "stop" if stop else "length"
        )

    def release(self, request_id: str) -> None:
        """Ends the conversation; see `Policy.release`."""
        self.client.release(request_id)

    def _vllm(self, sampling: Sampling) -> dict[str, Any]:
        """Fields of vLLM's SamplingParams, as verl's server passes them on.

        Only our end-of-turn token stops generation: models list more. verl's server bans ids
        without a token.
        """
        tokens = len(self.processor.tokenizer)
        banned = [token for token in self.processor.banned_ids if token < tokens]
        return {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "max_tokens": sampling.max_new_tokens,
            "seed": sampling.seed if self.seeds else None,
            "logprobs": True,
            "logit_bias": dict.fromkeys(banned, BANNED_LOGIT),
            "ignore_eos": True,
            "stop_token_ids": [self.processor.eos_id],
        }


class RolloutWorker:
    """Plays episodes with the policy of the rollout servers; a Ray actor with an event loop."""

    def __init__(self, client: ServerClient, experiment: ExperimentConfig, infra: InfraConfig):
        """Takes its share, one of `infra.verl.agent_workers`, of the limits on concurrency.

        Args:
            client: Client of the rollout servers.
            experiment: The experiment with resolved environments.
            infra: Infrastructure of environments, and the number of players.
        """
        players = infra.verl.agent_workers
        self.experiment = experiment
        self.client = client
        self.processor = load_processor(client.config.actor_rollout_ref.model.path)
        self.environments = environments_of(infra.environments, num_processes=players)
        self.scorer = Scorer(experiment, cache=cache_folder(infra), share=players)
        live = experiment.actor_rollout_ref.rollout.max_concurrency
        self.free = asyncio.Semaphore(-(-live // players))
        cpu = client.config.trainer.device == "cpu"
        self.seeds = seeds_requests(infra, cpu=cpu)
        self.stopped = -1
        """Number of the latest stopped batch."""

    async def play(
        self, spec: EpisodeSpec, sampling: SamplingConfig, split: str, batch: int = 0
    ) -> bytes:
        """Plays and judges one episode; returns it packed by `pack_trajectory`.

        An episode of a stopped batch ends before its next turn and is not judged.

        Raises:
            RenderError: The model cannot read the observation, or the prompt is too long.
        """
        runner = make_runner(
            self.experiment,
            policy=ServerPolicy(self.client, self.processor, seeds=self.seeds),
            processor=self.processor,
            sampling=sampling,
            stopped=lambda: self.stopped >= batch,
        )
        async with self.free:
            trajectory = await run_episode(
                runner,
                spec,
                lambda spec: make_environment(self.experiment, spec, split, self.environments),
            )
        if trajectory.status is not Status.UNFINISHED:
            await self.scorer.score(trajectory)
        return pack_trajectory(trajectory, runner.images)

    async def stop(self, batch: int) -> None:
        """Ends the episodes of a batch, each before its next turn."""
        self.stopped = batch


def start_players(
    client: ServerClient, experiment: ExperimentConfig, infra: InfraConfig
) -> list[ActorHandle]:
    """Starts `infra.verl.agent_workers` players, spread over the nodes."""
    # Concurrency is limited by `RolloutWorker.free`, so that episodes under judgement do not count.
    options = {"scheduling_strategy": "SPREAD", "max_concurrency": 1 << 16}
    actor = ray.remote(RolloutWorker).options(**options)
    return [actor.remote(client, experiment, infra) for _ in range(infra.verl.agent_workers)]


def play(
    players: Sequence[ActorHandle],
    specs: Sequence[EpisodeSpec],
    *,
    sampling: SamplingConfig,
    split: str,
    groups: int | None = None,
    on_finish: Callable[[Trajectory], None] | None = None,
    meanwhile: Callable[[Sequence[Trajectory], Images], None] | None = None,
) -> tuple[list[Trajectory], Images]:
    """Has episodes played; returns them in the order of `specs`, and all frames.

    Args:
        players: Result of `start_players`.
        specs: The episodes.
        sampling: Sampling options.
        split: Split of the levels.
        groups: Number of finished groups after which the other episodes are stopped unfinished;
            None finishes all.
        on_finish: Called with each finished trajectory.
        meanwhile: Called during play with newly finished episodes and all frames so far. Players
            continue while it runs.

    Raises:
        RenderError: The model cannot read an observation, or a prompt is too long.
        EpisodesFailed: Every episode failed in its environment.
        RolloutError: A server died, or there is a bug in the code.
        RayActorError: A player died.
    """
    turns = itertools.cycle(players)
    batch = next(_batches)
    episodes = [next(turns).play.remote(spec, sampling, split, batch) for spec in specs]
    missing = Counter(spec.group_id for spec in specs)
    played: dict[Any, Trajectory] = {}
    images: Images = {}
    waiting = episodes
    while waiting:
        ended, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=POLL_SECONDS)
        finished = []
        for episode in ended:
            trajectory, frames = unpack_trajectory(_result(episode))
            played[episode] = trajectory
            images |= frames
            if trajectory.status is not Status.UNFINISHED:
                finished.append(trajectory)
                missing[trajectory.group_id] -= 1
                if on_finish is not None:
                    on_finish(trajectory)
        if groups is not None and list(missing.values()).count(0) >= groups:
            groups = None
            for player in players:
                player.stop.remote(batch)
        if waiting and finished and meanwhile is not None:
            meanwhile(finished, images)
    trajectories = [played[episode] for episode in episodes]
    check_failures([t for t in trajectories if t.status is not Status.UNFINISHED])
    return trajectories, images


def _result(episode: Any) -> bytes:
    try:
        return ray.get(episode)
    except RayTaskError as error:
        if isinstance(error.cause, RenderError):
            raise RenderError(str(error.cause)) from error
        raise RolloutError(f"an episode broke off:\n{error}") from error


def pack_trajectory(trajectory: Trajectory, images: Mapping[str, bytes]) -> bytes:
    """Packs a trajectory and its frames (PNG) as a batch's tables in Arrow streams."""
    frames = {digest: images[digest] for digest in trajectory.frames}
    out = io.BytesIO()
    for table in encode([trajectory], frames).values():
        with pa.ipc.new_stream(out, table.schema) as stream:
            stream.write_table(table)
    return out.getvalue()


def unpack_trajectory(data: bytes) -> tuple[Trajectory, Images]:
    """Inverse of `pack_trajectory`."""
    source = pa.BufferReader(data)
    names = ("trajectories", "turns", "tokens", "images")
    tables = {name: pa.ipc.open_stream(source).read_all() for name in names}
    (trajectory,), frames = decode(tables)
    return trajectory, frames
