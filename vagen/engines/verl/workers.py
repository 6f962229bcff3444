"""verl's workers with additional calls for our engine, and their losses.

A worker is the process of one rank. Importing this module registers our networks with verl in every
worker process, since it defines the worker classes.

A worker calls a loss with its network's outputs on one micro batch. FSDP averages gradients over
ranks, so each rank's share is multiplied by their number.

Shape legend: T tokens of a row, N tokens of the micro batch's rows laid end to end.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils import tensordict_utils
from verl.utils.device import get_torch_device
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

import vagen.engines.verl.networks  # noqa: F401
from vagen.config.schema import ActorConfig
from vagen.engines.objectives import Loss, actor_objective, critic_objective
from vagen.engines.performance import start_trace, write_trace
from vagen.engines.verl.checkpoint import WRITER, Written, export_policy
from vagen.engines.verl.rows import ACTIONS, Share, at_tokens
from vagen.learning import Aggregate

PARTS = "vagen_parts"
"""Key of our metrics among verl's: sums with their weights."""

LossAndMetrics = tuple[Tensor, dict[str, dict[str, Aggregate]]]


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


def policy_loss(
    model_output: dict[str, Tensor], data: TensorDict, dp_group: Any = None, *, config: ActorConfig
) -> LossAndMetrics:
    """`actor_objective` of one micro batch, as verl's workers call it."""
    offsets = data["input_ids"].offsets()
    actions = data[ACTIONS].values().nonzero()[:, 0]
    rows = torch.repeat_interleave(
        torch.arange(len(offsets) - 1, device=actions.device), offsets.diff()
    )

    def column(name: str) -> Tensor:
        return data[f"column/{name}"].values()[actions]

    loss = actor_objective(
        model_output["log_probs"].values()[actions - 1],
        model_output["entropy"].values()[actions - 1],
        column,
        row_ids=rows[actions],
        denominator=torch.tensor(data["denominator"]),
        config=config,
        entropy_coeff=data["entropy_coeff"],
    )
    return _share(loss, data)


def value_loss(
    model_output: dict[str, Tensor], data: TensorDict, dp_group: Any = None
) -> LossAndMetrics:
    """`critic_objective` of one micro batch, as verl's workers call it."""
    loss = critic_objective(
        model_output["values"].values(),
        lambda name: data[f"column/{name}"].values(),
        denominator=torch.tensor(data["denominator"]),
        cliprange_value=data["cliprange_value"],
        value_shift=data["value_shift"],
    )
    return _share(loss, data)


def _share(loss: Loss, data: TensorDict) -> LossAndMetrics:
    value, metrics = loss
    cpu = {
        name: type(metric)(*(getattr(metric, slot).cpu() for slot in metric.__slots__))
        for name, metric in metrics.items()
    }
    return value * data["dp_size"], {PARTS: cpu}
