"""Weights broadcast from the first rank to GPUs of servers; here each is a thread, over gloo."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from verl.checkpoint_engine import CheckpointEngineRegistry

from vagen.engines.verl.broadcast import BroadcastEngine
from vagen.engines.verl.mapping import BROADCAST

BUCKET = 256
RANKS, RECEIVERS = 2, 2


@pytest.fixture
def engines() -> list[BroadcastEngine]:
    """Two ranks and two receivers, connected as verl's manager connects them."""
    made = CheckpointEngineRegistry.get(BROADCAST)
    assert made is BroadcastEngine
    return [BroadcastEngine(BUCKET, is_master=i == 0) for i in range(RANKS + RECEIVERS)]


def sent(seed: int) -> dict[str, Tensor]:
    """Types whose sizes leave the next one unaligned, one weight of several buckets, a scalar."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "odd": noise(3).to(torch.bfloat16),
        "matrix": noise(5, 7),
        "transposed": noise(4, 6).T,
        "large": noise(17, 13),
        "scalar": noise(),
        "counts": torch.arange(5),
        "last": noise(BUCKET // 4),
    }


def synchronize(engines: list[BroadcastEngine], weights: dict[str, Tensor]) -> list[dict]:
    """One round; what each receiver got."""
    metadata = [engine.prepare() for engine in engines]
    topology = BroadcastEngine.build_topology(RANKS, RECEIVERS, metadata)
    arguments = [
        {name: values[i] for name, values in part.items()}
        for part, count in zip(topology, (RANKS, RECEIVERS), strict=True)
        for i in range(count)
    ]
    asked: list[str] = []

    def send(engine: BroadcastEngine) -> None:
        def gathered():
            for name, weight in weights.items():
                asked.append(name)
                yield name, weight

        asyncio.run(engine.send_weights(gathered()))

    async def received(engine: BroadcastEngine) -> dict[str, Tensor]:
        return {name: weight.clone() async for name, weight in engine.receive_weights()}

    with ThreadPoolExecutor(len(engines)) as threads:
        list(threads.map(lambda e, a: e.init_process_group(**a), engines, arguments))
        sending = [threads.submit(send, engine) for engine in engines[:RANKS]]
        found = list(threads.map(lambda e: asyncio.run(received(e)), engines[RANKS:]))
        for future in sending:
            future.result()
    # Every rank takes part in gathering each weight.
    assert sorted(asked) == sorted([*weights, *weights])
    for engine in engines:
        engine.finalize()
        assert not engine._buckets
    return found


@pytest.mark.slow
def test_every_receiver_gets_every_weight_in_every_round(engines) -> None:
    for seed in range(3):
        weights = sent(seed)
        for found in synchronize(engines, weights):
            assert list(found) == list(weights)
            for name, weight in weights.items():
                assert found[name].dtype == weight.dtype
                assert torch.equal(found[name], weight)
    # Nothing of a round is left in the sender's store.
    assert engines[0]._store.num_keys() < 20
