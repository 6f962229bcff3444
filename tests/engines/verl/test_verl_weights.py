"""What the servers are sent: the policy's weights, rounded to their type, adapters merged."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from verl_stories import spawn

from vagen.experiment.load import load_infra

pytestmark = pytest.mark.slow

CASES = {
    "all": ((), "bfloat16"),
    "adapters": (("actor_rollout_ref.model.lora_rank=4",), "bfloat16"),
    "float32": (("actor_rollout_ref.model.lora_rank=4",), "float32"),
}


def send(rank: int, ranks: int, folder: Path) -> None:
    """What each rank sends, beside the checkpoint of the same weights."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    from omegaconf import OmegaConf

    from vagen.engines.verl.config import verl_config
    from vagen.engines.verl.workers import PolicyWorker

    given = torch.load(folder / "given.pt", weights_only=False)
    for case, (_, dtype) in CASES.items():
        infra = ["engine=verl", "device=cpu", "verl.n_gpus_per_node=2", f"dtype={dtype}"]
        source = str(given["source"])
        config = verl_config(given["experiments"][case], load_infra(None, infra), source)
        OmegaConf.resolve(config)
        policy = PolicyWorker(config.actor_rollout_ref, role="actor")
        policy.init_model()
        network = policy.actor.engine
        torch.manual_seed(3)
        with torch.no_grad():
            for name, weight in network.module.named_parameters():
                if ".lora_B." in name:  # at the start adapters say nothing
                    weight.to_local().normal_(std=0.1)
        sent, adapters = network.get_per_tensor_param(base_sync_done=True)
        assert adapters is None
        torch.save(dict(sent), folder / f"{case}-{rank}.pt")
        policy.export_policy(str(folder / case))
        while policy.written() == (None, None):
            time.sleep(0.01)


@pytest.fixture(scope="module")
def sent(vl_dir, make_experiment, tmp_path_factory) -> tuple[Path, dict[Any, Any]]:
    folder = tmp_path_factory.mktemp("sent")
    experiments = {case: make_experiment(*words) for case, (words, _) in CASES.items()}
    torch.save({"source": vl_dir, "experiments": experiments}, folder / "given.pt")
    spawn(send, 2, folder)
    files = {case: [torch.load(folder / f"{case}-{r}.pt") for r in range(2)] for case in CASES}
    return folder, files


@pytest.mark.parametrize("case", CASES)
def test_servers_get_the_policys_weights_in_their_own_type(sent, vl_dir, case):
    folder, files = sent
    first, second = files[case]
    exact = load_file(folder / case / "model.safetensors")
    # A weight that is two parameters' is written once and sent twice.
    assert exact.keys() <= first.keys() == second.keys()
    dtype = getattr(torch, CASES[case][1])
    for name, weight in exact.items():
        assert first[name].dtype == dtype
        assert torch.equal(first[name], weight.to(dtype)), name
        assert torch.equal(first[name], second[name])
    start = load_file(vl_dir / "model.safetensors")
    changed = [name for name, weight in exact.items() if not torch.equal(weight, start[name])]
    assert bool(changed) is (case != "all")
