"""verl's workers with additional calls for our engine.

A worker is the process of one rank. Importing this module registers our networks with verl in every
worker process, since it defines the worker classes.

Shape legend: T tokens of a row.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils import tensordict_utils
from verl.utils.device import get_torch_device
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

import vagen.engines.verl.networks  # noqa: F401
from vagen.engines.performance import start_trace, write_trace
from vagen.engines.verl.checkpoint import WRITER, Written, export_policy
from vagen.engines.verl.rows import at_tokens
from vagen.engines.verl.shared_rows import Share


@dataclass(frozen=True, slots=True)
class RankReply:
    """A rank's reply to a call."""

    outputs: list[NDArray[np.float32]]
    """[T] of each row of its share; empty after a step."""
    metrics: dict[str, Any]
    """verl's metrics over all ranks, from the first rank."""
    measured: dict[str, float]
    """`seconds`, and on GPUs `mfu`, `allocated` and `reserved` bytes; maxima over ranks."""


class NetworkWorker(TrainingWorker):
    """A rank of one network, which measures its calls."""

    measured: dict[str, float]

    def infer(self, share: Share, name: str) -> RankReply:
        """One output of the network at every token of the share."""
        output = self.infer_batch(share.batch())
        return RankReply(at_tokens(output[name]), {}, self.measured)

    def step(self, share: Share) -> RankReply:
        """One optimizer step."""
        metrics = tensordict_utils.get(self.train_batch(share.batch()), "metrics")
        return RankReply([], metrics if self.rank == 0 else {}, self.measured)

    def _postprocess_output(self, output: Any, *, delta_time: float, **options: Any) -> TensorDict:
        made = super()._postprocess_output(output, delta_time=delta_time, **options)
        self.measured = {"seconds": delta_time}
        device = get_torch_device()
        if self.device_name != "cpu":
            peak = [device.max_memory_allocated(), device.max_memory_reserved()]
            maxima = torch.tensor(peak, device=self.device_name)
            torch.distributed.all_reduce(maxima, op=torch.distributed.ReduceOp.MAX)
            self.measured |= dict(zip(("allocated", "reserved"), maxima.tolist(), strict=True))
            self.measured["mfu"] = tensordict_utils.get(made, "metrics").get("mfu", 0.0)
            device.reset_peak_memory_stats()
        return made


class CriticWorker(NetworkWorker):
    """A rank of the critic."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def values(self, share: Share) -> RankReply:
        """Values at every token."""
        return self.infer(share, "values")

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def learn(self, share: Share) -> RankReply:
        """One optimizer step."""
        return self.step(share)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def shift_values(self, shift: float) -> None:
        """Adds to every value."""
        self.engine.shift_values(shift)


class PolicyWorker(ActorRolloutRefWorker):
    """A rank of policy, reference and rollout."""

    actor_worker_cls = ref_worker_cls = NetworkWorker

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def logprobs(self, share: Share) -> RankReply:
        """Log-probabilities of each next token under the policy."""
        return self.actor.infer(share, "log_probs")

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def reference_logprobs(self, share: Share) -> RankReply:
        """Log-probabilities of each next token under a reference with separate weights."""
        return self.ref.infer(share, "log_probs")

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def features(self, frames: list[bytes]) -> list[Any]:
        """Puts the frozen vision tower's features of each frame into Ray's store.

        Every rank must get equally many frames.
        """
        return [ray.put(features) for features in self.actor.engine.features(frames)]

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def learn(self, share: Share) -> RankReply:
        """One optimizer step of the policy."""
        return self.actor.step(share)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def start_trace(self) -> None:
        """Starts a profile of the first rank, including the critic."""
        self.trace = start_trace() if self.rank == 0 else None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def write_trace(self, path: str) -> None:
        """Ends the profile and writes it."""
        if self.trace is not None:
            write_trace(self.trace, Path(path))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def written(self) -> Written:
        """Digests of this rank's checkpoint files once all networks' are written; None before."""
        return WRITER.written()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def export_policy(self, directory: str) -> None:
        """Starts to write a model directory with the policy's weights."""
        network = self.actor.engine
        source = network.model_config.local_path
        export_policy(network.module, source, network.processor, Path(directory), self.rank)
