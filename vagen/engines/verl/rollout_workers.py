"""Players: Ray actors that each play and judge a share of the episodes."""

import asyncio
import io
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import ray
from ray.actor import ActorHandle
from ray.exceptions import RayTaskError

from vagen.config.infra import InfraConfig
from vagen.config.schema import ExperimentConfig, SamplingConfig
from vagen.engines.base import Images
from vagen.engines.verl.errors import RolloutError
from vagen.engines.verl.policy import ServerClient, ServerPolicy
from vagen.judge.scoring import Scorer, cache_folder
from vagen.models.processor import load_processor
from vagen.rollout.batch_tables import decode, encode
from vagen.rollout.conversation import RenderError
from vagen.rollout.play import check_failures, make_environment, make_runner
from vagen.rollout.runner import EpisodeSpec, run_episode
from vagen.rollout.types import Status, Trajectory
from vagen.service import environments_of

POLL_SECONDS = 0.1
"""Seconds between collections of ended episodes."""
_batches = itertools.count()
"""Counter of played batches."""


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
            policy=ServerPolicy(self.client, self.processor),
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
