"""Rollout server `vagen_torch`: the local engine's batched generation behind verl's interfaces.

A server is a Ray actor with one copy of the policy's weights. It serves requests of several
processes in one batch, like `LocalPolicy`. For small models, tests, and machines without vLLM: the
weights stay in memory during training.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from typing import Any

import ray
import torch
from PIL.Image import Image
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch import Tensor
from verl.plugin.platform import get_platform
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from vagen.engines.local.generation import LocalPolicy
from vagen.engines.verl.mapping import TORCH_ROLLOUT
from vagen.models.loading import load_model
from vagen.rollout.types import Sampling

BUCKET_BYTES = 256 << 20
"""Approximate size of a part in which weights are sent, in bytes."""


def server_name(replica_rank: int) -> str:
    """Name of a replica's actor in the Ray namespace of the run."""
    return f"{TORCH_ROLLOUT}_server_{replica_rank}"


class TorchServer:
    """Serves generation with one copy of the policy; its methods run on the actor's event loop."""

    def __init__(self, *, model_path: str, dtype: str, slots: int, device: str | None = None):
        """Loads the model.

        Args:
            model_path: Directory or hub id.
            dtype: Type of the weights.
            slots: Maximum number of live conversations; further ones wait.
            device: CUDA device; None for the CPU.
        """
        if device is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = device
        self.language_model = load_model(
            model_path, device="cpu" if device is None else "cuda", dtype=getattr(torch, dtype)
        )
        self.slots = slots
        self._open()

    def _open(self) -> None:
        """Starts without conversations, also after a change of weights."""
        self.policy = LocalPolicy(self.language_model, slots=self.slots)
        self._free = asyncio.Semaphore(self.slots)
        self._live: set[str] = set()

    async def address(self) -> str:
        """The server's name in verl's load balancer."""
        node = ray.util.get_node_ip_address()
        return f"{node}:{os.getpid()}"

    async def generate(
        self,
        *,
        request_id: str,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        image_data: list[Image] | None = None,
        video_data: None = None,
    ) -> TokenOutput:
        """Continues a prompt; `sampling_params` are the fields of `Sampling`.

        Args:
            request_id: Id of the conversation, whose next request reuses the cache.
            prompt_ids: All of the context.
            sampling_params: Fields of `Sampling`.
            image_data: All images of the context.
            video_data: Unused argument of verl's client.
        """
        if request_id not in self._live:
            self._live.add(request_id)
            await self._free.acquire()
        generation = await self.policy.generate(
            request_id=request_id,
            prompt_ids=prompt_ids,
            images=image_data or [],
            sampling=Sampling(**sampling_params),
        )
        return TokenOutput(
            token_ids=generation.ids,
            log_probs=generation.logprobs,
            stop_reason="completed",
            num_preempted=0,
        )

    async def release(self, request_id: str) -> None:
        """Ends the conversation and admits a waiting one."""
        if request_id in self._live:
            self._live.remove(request_id)
            self.policy.release(request_id)
            self._free.release()

    async def update_weights(self, weights: dict[str, Tensor]) -> None:
        """Overwrites weights by name, in place.

        Raises:
            ValueError: The model has no weight of that name or shape.
        """
        own = self.language_model.model.state_dict()
        for name, value in weights.items():
            if name not in own or own[name].shape != value.shape:
                found = list(own[name].shape) if name in own else "none"
                raise ValueError(
                    f"{TORCH_ROLLOUT}: the trainer sent {name} {list(value.shape)}, the server's "
                    f"is {found}"
                )
            own[name].copy_(value)

    async def clear_kv_cache(self) -> None:
        """Drops all conversations; required after a change of weights."""
        self._open()

    sleep = clear_kv_cache

    async def _nothing(self, **kwargs: Any) -> None:
        """Methods that verl calls to free memory, which this server does not do."""

    wake_up = abort_all_requests = resume_generation = _nothing
    release_kv_cache = resume_kv_cache = start_profile = stop_profile = _nothing


class TorchReplica(RolloutReplica):
    """Launches a server next to the rank, or the weight receiver, whose GPU it shares."""

    async def launch_servers(self) -> None:
        """Starts the server's actor on the node of its first rank."""
        rank: Any = self.workers[0]
        node, device = await rank.__ray_call__.remote(_place)
        platform = get_platform()
        server: Any = (
            ray.remote(TorchServer)
            .options(
                name=server_name(self.replica_rank),
                num_cpus=0,
                max_concurrency=self.max_concurrency,
                runtime_env={"env_vars": dict.fromkeys(platform.ray_noset_envvars(), "1")},
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
            )
            .remote(
                model_path=self.model_config.path,
                dtype=self.config.dtype,
                slots=self.config.max_num_seqs,
                device=device if platform.device_name == "cuda" else None,
            )
        )
        self.servers = [server]
        self._server_handle = server
        self._server_address = await server.address.remote()


def _place(worker: Any) -> tuple[str, str]:
    """Node and accelerator of a rank's process; runs there."""
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_accelerator_ids()[get_platform().ray_resource_name()][
        0
    ]


class TorchAdapter(BaseRollout):
    """Sends a server the weights that its rank has or receives."""

    def __init__(self, *args: Any, replica_rank: int | None = None, **kwargs: Any):
        """Finds its server by rank.

        Args:
            args: Arguments of verl.
            replica_rank: Rank of the server; None takes the process's rank.
            kwargs: Arguments of verl.
        """
        super().__init__(*args, **kwargs)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank is None else replica_rank

    async def resume(self, tags: list[str]) -> None:
        """Does nothing, as memory was not released."""

    async def release(self) -> None:
        """Does nothing: the server keeps its weights."""

    async def update_weights(
        self,
        weights: Iterable[tuple[str, Tensor]] | AsyncIterator[tuple[str, Tensor]],
        wire_format: str = "named_tensors",
        **kwargs: Any,
    ) -> None:
        """Sends all weights. Every rank must iterate: gathering a sharded weight is collective."""
        assert wire_format == "named_tensors", wire_format
        server: Any = ray.get_actor(server_name(self.replica_rank))
        bucket: dict[str, Tensor] = {}
        size = 0
        async for name, weight in ensure_async_iterator(weights):
            bucket[name] = weight.detach().to("cpu", copy=True)
            size += bucket[name].nbytes
            if size >= BUCKET_BYTES:
                await server.update_weights.remote(bucket)
                bucket, size = {}, 0
        await server.update_weights.remote(bucket)
        await server.clear_kv_cache.remote()
