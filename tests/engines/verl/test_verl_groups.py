"""When servers are sent to sleep, woken and sent weights; verl's part is only recorded."""

from types import SimpleNamespace
from typing import Any

import pytest

from vagen.experiment.load import load_experiment, load_infra


class Processes:
    """Stands in for verl's managers of processes."""

    def __init__(self, *_: Any, **__: Any):
        self.resource_pool_dict = {"ranks": None}

    @classmethod
    def create(cls, **_: Any) -> "Processes":
        return cls()

    def create_resource_pool(self) -> None:
        """Reserves nothing."""

    def get_replicas(self) -> list[Any]:
        return []

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
        trainer = SimpleNamespace(n_gpus_per_node=1, nnodes=1)
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
