"""Sends weights to rollout servers with separate GPUs (`infra.verl.rollout_gpus`).

A backend of verl's checkpoint engine over torch.distributed: NCCL between GPUs, gloo between CPU
processes. (verl's `nccl` backend needs cupy and GPUs.) The first rank packs weights into buckets
and broadcasts one while it gathers the next; a key-value store carries each bucket's table of
contents. Configurations name this module, so that every sending or receiving process imports it.
"""

import json
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any

import ray
import torch
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore
from verl.checkpoint_engine.base import (
    CheckpointEngine,
    CheckpointEngineRegistry,
    TensorMeta,
    merge_weight_chunks,
    split_weight_chunks,
)
from verl.utils.device import get_device_id, get_device_name

from vagen.engines.verl.mapping import BROADCAST

PATIENCE = timedelta(minutes=30)
"""Timeout of a process that waits for the others."""
ALIGNMENT = 16
"""Alignment of weights in a bucket, in bytes."""
BUCKETS = 2
"""Number of buckets: one is filled or read while the other is sent."""

Address = tuple[str, int]
TensorPart = tuple[TensorMeta, Tensor]


@CheckpointEngineRegistry.register(BROADCAST)
class BroadcastEngine(CheckpointEngine):
    """One process of the broadcast: the first rank sends, server GPUs receive, other ranks gather.

    The process group is created once; losing a process ends the engine.
    """

    def __init__(self, bucket_size: int, is_master: bool = False):
        """Does not connect yet.

        Args:
            bucket_size: Bytes of a bucket; two are allocated while weights are sent.
            is_master: Whether this process sends.
        """
        self.bucket_size = bucket_size
        self.is_master = is_master
        self._buckets: list[Tensor] = []
        self._store: Any = None
        self._group: Any = None
        self._keys: list[str] = []
        self._round = 0

    def prepare(self) -> Address | None:
        """Allocates the buckets; the sender returns the address of its store, others None."""
        self._buckets = [
            torch.empty(self.bucket_size, dtype=torch.uint8, device=get_device_id())
            for _ in range(BUCKETS)
        ]
        if not self.is_master:
            return None
        self._host = ray.util.get_node_ip_address().strip("[]")
        if self._store is None:
            self._store = TCPStore(
                self._host, 0, is_master=True, wait_for_workers=False, timeout=PATIENCE
            )
        return self._host, self._store.port

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Address | None]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Ranks in the process group: 0 is the sender, -1 are training ranks that do not send."""
        size = 1 + rollout_world_size

        def arguments(places: list[int]) -> dict[str, list[Any]]:
            count = len(places)
            return {"rank": places, "size": [size] * count, "address": [metadata[0]] * count}

        silent = [-1] * (actor_wg_world_size - 1)
        return arguments([0, *silent]), arguments(list(range(1, size)))

    def init_process_group(self, rank: int, size: int, address: Address) -> None:
        """Joins the process group on the first call."""
        if rank < 0:
            self._buckets = []
        elif self._group is None:
            if self._store is None:
                self._store = TCPStore(*address, is_master=False, timeout=PATIENCE)
            # A group besides torch's default one, which has other members.
            on_gpus = get_device_name() == "cuda"
            kind: Any = torch.distributed.ProcessGroupNCCL if on_gpus else ProcessGroupGloo
            self._group = kind(PrefixStore("group", self._store), rank, size, PATIENCE)

    def finalize(self) -> None:
        """Frees the buckets; by now every process has all weights."""
        self._buckets = []
        for key in self._keys:
            self._store.delete_key(key)
        self._keys = []
        self._round += 1

    @torch.no_grad()
    async def send_weights(
        self, weights: Iterable[tuple[str, Tensor]], global_steps: int | None = None
    ) -> None:
        """Sends all weights. Every rank must iterate: gathering a sharded weight is collective."""
        if self._group is None:
            for _ in weights:
                pass
            return
        sent: Any = None
        metas: list[TensorMeta] = []
        place, end = 0, 0
        contiguous = ((name, weight.detach().contiguous()) for name, weight in weights)
        async for meta, chunk in split_weight_chunks(contiguous, self.bucket_size):
            assert chunk is not None
            if end + meta.chunk_size > self.bucket_size:
                if sent is not None:
                    sent.wait()
                sent = self._send(metas, self._buckets[place], last=False)
                metas, end, place = [], 0, (place + 1) % BUCKETS
            meta.offset = end
            metas.append(meta)
            self._buckets[place][end : end + meta.chunk_size].copy_(chunk)
            end += -(-meta.chunk_size // ALIGNMENT) * ALIGNMENT
        if sent is not None:
            sent.wait()
        self._send(metas, self._buckets[place], last=True).wait()
        torch.get_device_module(self._buckets[place].device).synchronize()

    def _send(self, metas: list[TensorMeta], bucket: Tensor, *, last: bool) -> Any:
        """Starts to broadcast a bucket; returns a handle to wait for."""
        self._keys.append(self._key(len(self._keys)))
        contents = [
            {**vars(meta), "shape": list(meta.shape), "dtype": str(meta.dtype)} for meta in metas
        ]
        self._store.set(self._keys[-1], json.dumps([contents, last]))
        return self._group.broadcast(bucket[: _length(metas)], 0)

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, Tensor]]:
        """Yields all weights in order; each is valid until the next is requested."""
        async for name, weight in merge_weight_chunks(self._received(), self.bucket_size):
            yield name, weight

    async def _received(self) -> AsyncIterator[TensorPart]:
        """Yields parts of weights from one bucket while the next is received."""
        number, coming = 0, self._receive(0)
        while coming is not None:
            metas, last, bucket, work = coming
            work.wait()
            number += 1
            coming = None if last else self._receive(number)
            for meta in metas:
                assert meta.offset is not None
                yield meta, bucket[meta.offset : meta.offset + meta.chunk_size]

    def _receive(self, number: int) -> tuple[list[TensorMeta], bool, Tensor, Any]:
        """Starts to receive a bucket: its contents, whether it is the last, buffer, handle."""
        contents, last = json.loads(self._store.get(self._key(number)))
        metas = []
        for meta in contents:
            dtype = getattr(torch, meta["dtype"].removeprefix("torch."))
            metas.append(TensorMeta(**meta | {"shape": torch.Size(meta["shape"]), "dtype": dtype}))
        bucket = self._buckets[number % BUCKETS]
        return metas, last, bucket, self._group.broadcast(bucket[: _length(metas)], 0)

    def _key(self, number: int) -> str:
        return f"{self._round}/{number}"


def _length(metas: list[TensorMeta]) -> int:
    """Used bytes of a bucket."""
    return metas[-1].offset + metas[-1].chunk_size
