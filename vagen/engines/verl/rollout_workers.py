"""The processes that play: Ray actors that each play, and judge, their share of the episodes."""

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
"""Episodes that ended are collected together this often."""
_batches = itertools.count()
"""Numbers of what this process has had played."""


class RolloutWorker:
    """Plays episodes with the policy of the rollout servers; a Ray actor with an event loop."""

    def __init__(self, client: ServerClient, experiment: ExperimentConfig, infra: InfraConfig):
        """Takes its share, one of `infra.verl.agent_workers`, of what all players may use.

        Args:
            client: Of the rollout servers.
            experiment: With resolved environments.
            infra: Where environments run, and how many players there are.
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
        """The latest batch that was stopped."""

    async def play(
        self, spec: EpisodeSpec, sampling: SamplingConfig, split: str, batch: int = 0
    ) -> bytes:
        """Plays and judges one episode; returns it as `pack_trajectory` does.

        Once its batch is stopped it ends before its next turn, and is not judged.

        Raises:
            RenderError: The model cannot read what the environment shows, or the prompt is too
                long.
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
    # Episodes wait for `RolloutWorker.free`, so that those that are being judged do not count.
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
    """Has episodes played; returns them as `specs` are ordered, and every frame shown.

    Args:
        players: Of `start_players`.
        specs: The episodes.
        sampling: How the policy draws tokens.
        split: Of the levels.
        groups: Once so many groups are finished the others are stopped, and their episodes may be
            unfinished; None finishes all.
        on_finish: Called with each trajectory when it is finished.
        meanwhile: Called while others are still played, with those finished since the last time
            and all frames so far. However long it takes, the players go on.

    Raises:
        RenderError: The model cannot read what an environment shows, or a prompt is too long.
        EpisodesFailed: Every episode failed in its environment.
        RolloutError: A server died, or there is a mistake in the code.
        RayActorError: A player died.
    """
    turns = itertools.cycle(players)
    batch = next(_batches)
    asked = [next(turns).play.remote(spec, sampling, split, batch) for spec in specs]
    missing = Counter(spec.group_id for spec in specs)
    played: dict[Any, Trajectory] = {}
    images: Images = {}
    waiting = asked
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
    trajectories = [played[episode] for episode in asked]
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
    """A trajectory and the PNG bytes of its frames, as the tables of a batch in Arrow streams."""
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
