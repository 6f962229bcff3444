"""Checkpoints of the distributed engine: exact, for any number of ranks, readable by others."""

import errno
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from verl_stories import go_on, rows_of, spawn, tell

from vagen.storage import StorageError, verify_directory
from vagen.storage.manifest import file_entry

pytestmark = pytest.mark.slow


def test_copies_to_host_memory_do_not_wait_for_each_other(monkeypatch):
    """The order of calls only: pinned memory needs a GPU."""
    from torch.overrides import TorchFunctionMode

    from vagen.engines.verl import checkpoint

    calls: list[Any] = []

    class Device:
        @staticmethod
        def synchronize() -> None:
            calls.append("synchronize")

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            if func is torch.Tensor.to:
                calls.append((args[1], kwargs))
            return func(*args, **(kwargs or {}))

    monkeypatch.setattr(checkpoint, "get_torch_device", Device)
    state = {"weight": torch.arange(3.0), "moments": {0: {"step": torch.tensor(2.0)}}, "lr": 0.5}
    with Watch():
        copied = checkpoint.to_host(state)
    copy = ("cpu", {"copy": True, "non_blocking": True})
    assert calls == [copy, copy, "synchronize"]
    state["weight"].zero_()
    assert copied["weight"].tolist() == [0, 1, 2]
    assert copied["moments"][0]["step"] == 2 and copied["lr"] == 0.5


LORA = ("actor_rollout_ref.model.lora_rank=4", "critic.model.lora_rank=4")


def network(rank: int, ranks: int, *, seed: int, frozen: bool = False):
    """A small sharded network whose rows do not divide evenly, and its checkpoint manager."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from vagen.engines.verl.checkpoint import ShardedState

    torch.manual_seed(seed)
    module = torch.nn.Sequential(
        torch.nn.Linear(3, 7), torch.nn.Linear(7, 5), torch.nn.Linear(5, 1)
    )
    module[0].requires_grad_(not frozen)
    fully_shard(module, mesh=init_device_mesh("cpu", (ranks,), mesh_dim_names=("fsdp",)))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    return module, optimizer, ShardedState(module, optimizer, scheduler)


def learn(module: Any, optimizer: Any, seed: int) -> list[torch.Tensor]:
    """A step on the same data on every rank; the whole weights after it."""
    inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
    module(inputs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return [value.full_tensor() for value in module.state_dict().values()]


def write(rank: int, ranks: int, folder: Path) -> None:
    from vagen.engines.verl import checkpoint

    module, optimizer, manager = network(rank, ranks, seed=1)
    learn(module, optimizer, 1)
    learnt = threading.Event()
    save = checkpoint._save
    checkpoint._save = lambda *given: learnt.wait() and save(*given)
    manager.save_checkpoint(str(folder / "actor"))
    expected = learn(module, optimizer, 2)
    assert checkpoint.WRITER.written() == (None, None)
    learnt.set()
    while (written := checkpoint.WRITER.written()) == (None, None):
        pass
    entries, error = written
    assert error is None and len(entries) == 3
    for name, entry in entries.items():
        assert entry == file_entry(folder / name)
    torch.save(expected, folder / f"expected-{rank}.pt")


def read(rank: int, ranks: int, folder: Path) -> None:
    module, optimizer, manager = network(rank, ranks, seed=2)
    learn(module, optimizer, 5)
    manager.load_checkpoint(str(folder / "actor"))
    torch.save(learn(module, optimizer, 2), folder / f"found-{rank}.pt")
    manager = network(rank, ranks, seed=1, frozen=True)[2]
    with pytest.raises(ValueError, match=r"is of another network: 0\.bias is not in both"):
        manager.load_checkpoint(str(folder / "actor"))


def test_any_number_of_ranks_reads_what_any_other_wrote(tmp_path):
    """Here three and two; they refuse what is of another network."""
    spawn(write, 3, tmp_path)
    assert len(os.listdir(tmp_path / "actor")) == 9
    spawn(read, 2, tmp_path)
    expected, found = (torch.load(tmp_path / f"{name}-1.pt") for name in ("expected", "found"))
    for ours, theirs in zip(expected, found, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-6)


def test_files_that_are_not_all_there_are_refused(tmp_path):
    from vagen.engines.verl.checkpoint import PARTS, check_shards, shard_name

    with pytest.raises(StorageError, match="holds no weights that ranks"):
        check_shards(tmp_path)
    for part in PARTS:
        for rank in range(2):
            (tmp_path / shard_name(part, rank, 2)).touch()
    assert check_shards(tmp_path) == 2
    (tmp_path / shard_name("optim", 1, 2)).unlink()
    with pytest.raises(StorageError, match=r"lacks optim_world_size_2_rank_1\.pt"):
        check_shards(tmp_path)


def test_an_engine_goes_back_to_its_checkpoint_exactly(one_rank):
    metrics, logprobs = one_rank.second
    again, found = one_rank.found["again"]
    assert one_rank.found["state"] == (1, "checkpoint")
    assert metrics == again
    for ours, theirs in zip(logprobs, found, strict=True):
        np.testing.assert_array_equal(theirs, ours)
    before = one_rank.found["logprobs"]
    assert max(np.abs(a - b).max() for a, b in zip(before, logprobs, strict=True)) > 1e-3


def test_the_servers_play_with_the_weights_that_were_loaded(one_rank):
    for played in one_rank.found["played"]:
        assert sum(len(servers) for servers, _ in played) > 10
        for servers, trainers in played:
            np.testing.assert_allclose(servers, trainers, atol=1e-4)


def test_one_rank_goes_on_from_what_two_wrote(two_ranks, one_rank):
    metrics, logprobs = two_ranks.second
    found, theirs = one_rank.found["from_two_ranks"]
    for name, value in metrics.items():
        assert found[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    for a, b in zip(logprobs, theirs, strict=True):
        np.testing.assert_allclose(b, a, atol=1e-4)


def test_the_policy_is_a_model_directory_that_the_local_engine_reads(
    one_rank, two_ranks, vl_dir, vl_batch, make_experiment
):
    from vagen.engines.local.engine import LocalEngine

    for story in (one_rank, two_ranks):
        verify_directory(story.checkpoint)
        policy = story.checkpoint / "policy"
        assert sorted(os.listdir(policy)) == sorted(os.listdir(vl_dir))
        assert (policy / "config.json").read_text() == (vl_dir / "config.json").read_text()
    engine = LocalEngine(
        make_experiment(), one_rank.checkpoint / "policy", device=torch.device("cpu")
    )
    found = engine.logprobs(rows_of(vl_batch), vl_batch.images)
    for ours, theirs in zip(found, one_rank.found["logprobs"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.fixture(scope="module")
def adapted(make_verl_engine, vl_dir, vl_batch, tmp_path_factory):
    """Two ranks that train adapters, back at their checkpoint and on again."""
    from vagen.engines.verl.errors import EngineLost

    engine = make_verl_engine(vl_dir, *LORA, ranks=2)
    story = tell(engine, vl_batch, tmp_path_factory.mktemp("adapted") / "checkpoint")
    story.found["again"] = go_on(engine, vl_batch, story.checkpoint)
    engine.load(story.checkpoint, version="checkpoint")
    story.found["logprobs"] = engine.logprobs(rows_of(vl_batch), vl_batch.images)
    story.found["incomplete"] = shutil.copytree(
        story.checkpoint, story.checkpoint.parent / "incomplete"
    )
    (story.found["incomplete"] / "critic" / "model_world_size_2_rank_1.pt").unlink()
    with pytest.raises(StorageError, match=r"critic lacks model_world_size_2_rank_1\.pt"):
        engine.load(story.found["incomplete"], version="incomplete")
    blocked = story.checkpoint.parent / "blocked"
    (blocked / "critic" / "optim_world_size_2_rank_1.pt").mkdir(parents=True)
    finish = engine.begin_save(blocked)
    with pytest.raises(IsADirectoryError, match=r"critic/optim_world_size_2_rank_1\.pt"):
        finish()
    (story.checkpoint.parent / "occupied").touch()
    story.found["errors"] = []
    for error in (OSError, EngineLost):
        with pytest.raises(error) as caught:
            engine.save(story.checkpoint.parent / "occupied")
        story.found["errors"].append(caught.value)
    story.found["rank 0"] = engine.processes.places["rank 0"]
    return story


def test_adapters_and_the_value_head_come_back_exactly(adapted):
    metrics, logprobs = adapted.second
    again, found = adapted.found["again"]
    assert metrics == again
    for ours, theirs in zip(logprobs, found, strict=True):
        np.testing.assert_array_equal(theirs, ours)


def test_a_rank_that_failed_is_named_with_its_reason(adapted):
    error, later = adapted.found["errors"]
    assert error.errno == errno.ENOTDIR and "occupied" in error.filename
    rank = adapted.found["rank 0"]
    assert str(later).startswith(f"rank 0 (process {rank.pid} on {rank.node}, log {rank.log}) fail")
    assert "failed: NotADirectoryError: [Errno 20]" in str(later)


def test_a_checkpoint_with_adapters_holds_no_base_and_a_merged_policy(
    adapted, vl_batch, make_experiment
):
    from vagen.engines.local.engine import LocalEngine

    for name in ("actor", "critic"):
        path = adapted.checkpoint / name / "model_world_size_2_rank_0.pt"
        learnt = torch.load(path, weights_only=True)
        others = {key for key in learnt if ".lora_" not in key}
        assert len(learnt) > len(others)
        assert all("lm_head" in key for key in others) and bool(others) == (name == "critic")
    policy = adapted.checkpoint / "policy"
    engine = LocalEngine(make_experiment(), policy, device=torch.device("cpu"))
    found = engine.logprobs(rows_of(vl_batch), vl_batch.images)
    for ours, theirs in zip(found, adapted.found["logprobs"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert json.loads((adapted.checkpoint / "engine.json").read_text())["updates"] == 1
