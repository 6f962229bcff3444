"""When servers are sent to sleep, woken and sent weights; verl's part is only recorded."""

import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vagen.experiment.load import load_experiment, load_infra


class Server:
    """Takes calls as Ray's handle of a rollout server does."""

    def __init__(self):
        self.told: list[tuple[str, tuple[int]]] = []
        self.collective_rpc = self

    def remote(self, method: str, args: tuple[int]) -> None:
        """Notes a call of the server's workers."""
        self.told.append((method, args))


class Processes:
    """Stands in for verl's managers of processes."""

    def __init__(self, *_: Any, **__: Any):
        self.resource_pool_dict = {"ranks": None}
        self.replicas = [SimpleNamespace(servers=[Server()]) for _ in range(2)]

    @classmethod
    def create(cls, **_: Any) -> "Processes":
        return cls()

    def create_resource_pool(self) -> None:
        """Reserves nothing."""

    def get_replicas(self) -> list[Any]:
        return self.replicas

    def get_client(self, **_: Any) -> None:
        return None


@pytest.fixture
def start(monkeypatch):
    """Starts groups whose servers forget their weights, or not; returns them and verl's calls."""
    from vagen.engines.verl import groups

    def begin(*infra: str, forget: bool) -> tuple[Any, list[str]]:
        calls: list[str] = []
        weights = SimpleNamespace(
            sleep_replicas=lambda: calls.append("sleep"),
            update_weights=lambda step: calls.append("weights"),
        )
        monkeypatch.setattr(groups, "CheckpointEngineManager", lambda **_: weights)
        monkeypatch.setattr(groups, "ResourcePoolManager", Processes)
        monkeypatch.setattr(groups, "LLMServerManager", Processes)
        monkeypatch.setattr(groups, "_start_ranks", lambda *_: (None, None))
        monkeypatch.setattr(groups, "start_players", lambda *_: [])
        monkeypatch.setattr(groups, "omega_conf_to_dataclass", lambda config: config)
        rollout = SimpleNamespace(free_cache_engine=forget, checkpoint_engine=None)
        trainer = SimpleNamespace(n_gpus_per_node=1, nnodes=1, device="cuda")
        config: Any = SimpleNamespace(
            actor_rollout_ref=SimpleNamespace(rollout=rollout), trainer=trainer
        )
        experiment = load_experiment("frozenlake-tiny")
        laid = load_infra(None, ["engine=verl", "device=cpu", *infra])
        return groups.WorkerGroups(experiment, laid, config), calls

    return begin


@pytest.mark.parametrize("forget", [True, False])
def test_servers_that_sleep_are_not_asked_again(start, forget):
    """They sleep from the beginning; every call of an update would ask all of them."""
    groups, calls = start(forget=forget)
    assert calls == ["sleep"]
    groups.make_room()
    assert calls == ["sleep"]
    groups.synchronize()
    groups.make_room()
    groups.make_room()
    assert calls == ["sleep", "weights", "sleep"]
    # An evaluation with the same weights: those that forgot them get them again.
    groups.synchronize()
    groups.make_room()
    assert calls == ["sleep", "weights", "sleep", *["weights"] * forget, "sleep"]
    groups.weights_changed()
    groups.synchronize()
    assert calls[-1] == "weights"


def test_servers_with_gpus_of_their_own_never_sleep(start):
    groups, calls = start("verl.rollout_gpus=1", forget=False)
    groups.make_room()
    groups.synchronize()
    groups.make_room()
    assert calls == ["weights"]


def test_servers_are_seeded_for_a_rollout_where_requests_are_not(start, monkeypatch):
    """Each with a seed of its own, and with the same ones when the rollout is repeated."""
    monkeypatch.setattr("ray.get", lambda calls: calls)

    def told(*infra: str) -> list[Any]:
        groups, _ = start(*infra, forget=True)
        for seed in (3, 3, 4):
            groups.seed(seed)
        return [replica.servers[0].told for replica in groups.servers.get_replicas()]

    first, second = told()
    assert first[0][0] == "seed_sampling"
    assert first[0] == first[1] != first[2]
    assert first[0] != second[0]
    assert told("verl.request_seeds=true") == [[], []]
    assert told("verl.rollout=torch") == [[], []]


def test_the_extension_of_vllms_workers_seeds_their_sampling(monkeypatch):
    """vLLM itself is not installed here; it mixes the named class into its workers."""
    import sys

    import torch

    from vagen.engines.verl.mapping import SEEDED_WORKER

    theirs: Any = ModuleType("utils")
    theirs.vLLMColocateWorkerExtension = object
    monkeypatch.setitem(sys.modules, "verl.workers.rollout.vllm_rollout.utils", theirs)
    module, _, name = SEEDED_WORKER.rpartition(".")
    monkeypatch.delitem(sys.modules, module, raising=False)
    worker = getattr(importlib.import_module(module), name)()
    with torch.random.fork_rng():
        worker.seed_sampling(5)
        drawn = torch.rand(3)
        assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(5)))
    monkeypatch.delitem(sys.modules, module)
