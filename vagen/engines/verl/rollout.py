"""The driver's side of a rollout: orders to the processes that play, finished episodes back."""

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import ray
import transfer_queue as tq
from tensordict import TensorDict
from verl.utils import tensordict_utils

from vagen.config.schema import SamplingConfig
from vagen.engines.base import Images
from vagen.engines.verl.agent_loop import PlayManager
from vagen.engines.verl.errors import RolloutError
from vagen.engines.verl.wire import Order, unpack_trajectory
from vagen.rollout.conversation import RenderError
from vagen.rollout.play import check_failures
from vagen.rollout.runner import EpisodeSpec
from vagen.rollout.types import Trajectory

PARTITION = "train"
"""Of the transfer queue; verl knows this one and `val`."""
POLL_SECONDS = 0.1
ALIVE_SECONDS = 10.0
"""How often the processes that play are asked whether they live."""


def play(
    manager: PlayManager,
    specs: Sequence[EpisodeSpec],
    *,
    sampling: SamplingConfig,
    split: str,
    on_finish: Callable[[Trajectory], None] | None = None,
) -> tuple[list[Trajectory], Images]:
    """Plays episodes; returns them as `specs` are ordered, and every frame shown.

    Raises:
        RenderError: The model cannot read what an environment shows, or a prompt is too long.
        EpisodesFailed: Every episode failed in its environment.
        RolloutError: A server died, or there is a mistake in the code.
        RayActorError: A process that plays died.
    """
    # No rollout sees what is left of another, such as of one that broke off and was begun again.
    name = uuid.uuid4().hex
    keys = [f"{name}-{place:06d}" for place in range(len(specs))]
    trajectories: dict[str, Trajectory] = {}
    images: Images = {}
    orders = [Order(spec, sampling, split).to_json() for spec in specs]
    try:
        tq.kv_batch_put(
            keys=keys, partition_id=PARTITION, tags=[{"status": "pending"} for _ in keys]
        )
        manager.generate_sequences(_batch(keys, orders))
        asked = time.monotonic()
        while len(trajectories) < len(keys):
            time.sleep(POLL_SECONDS)
            for key in _finished(set(keys) - trajectories.keys()):
                trajectories[key], frames = _take(key)
                images |= frames
                if on_finish is not None:
                    on_finish(trajectories[key])
            if time.monotonic() - asked > ALIVE_SECONDS:
                _check_alive(manager)
                asked = time.monotonic()
    finally:
        _clear(name)
    played = [trajectories[key] for key in keys]
    check_failures(played)
    return played, images


def _batch(keys: list[str], orders: list[str]) -> TensorDict:
    """What verl's manager hands on: one prompt per episode, played once each."""
    fields: Any = {
        "uid": np.array(keys, dtype=object),
        "index": np.arange(len(keys)).astype(object),
        "order": np.array(orders, dtype=object),
        "__rollout_n__": np.ones(len(keys), dtype=object),
    }
    batch = tensordict_utils.get_tensordict(fields)
    tensordict_utils.assign_non_tensor_data(batch, "global_steps", 0)
    return batch


def _finished(waiting: set[str]) -> list[str]:
    """Episodes that have ended since.

    Raises:
        RolloutError: verl gave one up.
    """
    tags = tq.kv_list(PARTITION).get(PARTITION, {})
    status = {key: tags[key].get("status") for key in waiting if key in tags}
    lost = sorted(key for key, value in status.items() if value == "failure")
    if lost:
        raise RolloutError(f"verl lost {lost[0]}: the log of its agent loop workers tells why")
    return sorted(key for key, value in status.items() if value == "finished")


def _take(key: str) -> tuple[Trajectory, Images]:
    """The trajectory of a finished episode and its frames."""
    row: Any = tq.kv_batch_get(
        keys=[f"{key}_0_0"], partition_id=PARTITION, select_fields=["trajectory", "failure"]
    )
    failure = tensordict_utils.get(row, "failure")[0]
    kind, _, message = failure.partition(": ")
    if kind == RenderError.__name__:
        raise RenderError(message)
    if failure:
        raise RolloutError(f"an episode broke off:\n{failure}")
    return unpack_trajectory(row["trajectory"][0].numpy().tobytes())


def _check_alive(manager: PlayManager) -> None:
    ray.get([worker.__ray_ready__.remote() for worker in manager.agent_loop_workers])


def _clear(name: str) -> None:
    """Takes a rollout's keys out of the queue."""
    keys = [key for key in tq.kv_list(PARTITION).get(PARTITION, {}) if key.startswith(name)]
    if keys:
        tq.kv_clear(keys=keys, partition_id=PARTITION)
