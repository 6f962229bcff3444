"""What we use of verl is there, under the names and parameters we use.

Subclasses, patches and calls depend on it. If one of these fails, the version of verl has moved the
symbol that the failure names; everything that uses it is under `vagen/engines/verl`.
"""

import importlib
import inspect
from importlib.metadata import version
from pathlib import Path
from typing import Any, Optional

import pytest

RAY = "verl.single_controller.ray"
WORKERS = "verl.workers.engine_workers"
ROLLOUT = "verl.workers.rollout"
CHECKPOINT = "verl.checkpoint_engine.base:CheckpointEngineManager"
FSDP = "verl.workers.engine.fsdp.transformer_impl"
CALLED: dict[str, list[str]] = {
    # cpu.py
    "verl.plugin.platform:PlatformRegistry.register": ["platform"],
    "verl.utils.distributed:initialize_global_process_group_ray": ["timeout_second", "backend"],
    "verl.utils.fsdp_utils:CPUOffloadPolicy": ["pin_memory"],
    # torch_server.py
    f"{ROLLOUT}.base:BaseRollout.__init__": ["config", "model_config", "device_mesh"],
    f"{ROLLOUT}.base:BaseRollout.resume": ["tags"],
    f"{ROLLOUT}.base:BaseRollout.release": [],
    f"{ROLLOUT}.base:BaseRollout.update_weights": ["weights", "wire_format"],
    f"{ROLLOUT}.replica:RolloutReplica.launch_servers": [],
    f"{ROLLOUT}.replica:RolloutReplica.max_concurrency": [],
    f"{ROLLOUT}.replica:RolloutReplicaRegistry.register": ["name", "loader"],
    # policy.py
    f"{ROLLOUT}.llm_server:LLMServerClient.generate": [
        "request_id",
        "prompt_ids",
        "sampling_params",
        "image_data",
        "video_data",
    ],
    f"{ROLLOUT}.llm_server:LLMServerClient._acquire_server": ["request_id", "extra"],
    f"{ROLLOUT}.llm_server:LLMServerClient._vllm_request_id": ["request_id"],
    f"{ROLLOUT}.llm_server:LLMServerManager.get_client": ["client_cls"],
    # networks.py
    f"{FSDP}:FSDPEngineWithLMHead.prepare_model_inputs": ["micro_batch"],
    f"{FSDP}:FSDPEngineWithLMHead.prepare_model_outputs": [
        "output",
        "output_args",
        "micro_batch",
        "logits_processor_func",
    ],
    f"{FSDP}:prepare_micro_batches": ["data", "dp_group"],
    f"{FSDP}:FSDPEngine.eval_mode": [],
    "torch.distributed.fsdp:register_fsdp_forward_method": ["module", "method_name"],
    "verl.models.transformers.qwen2_vl:_get_input_embeds": ["pixel_values", "image_grid_thw"],
    "verl.models.transformers.qwen3_vl:_get_input_embeds": ["pixel_values", "image_grid_thw"],
    # groups.py
    f"{RAY}:ResourcePoolManager.__init__": ["resource_pool_spec", "mapping"],
    f"{RAY}:ResourcePoolManager.create_resource_pool": [],
    f"{RAY}:RayClassWithInitArgs.__init__": ["cls"],
    f"{RAY}:RayWorkerGroup.__init__": ["resource_pool", "ray_cls_with_init", "name_prefix"],
    f"{RAY}:RayWorkerGroup.spawn": ["prefix_set"],
    f"{RAY}:create_colocated_worker_cls": ["class_dict"],
    f"{WORKERS}:ActorRolloutRefWorker.__init__": ["config", "role"],
    f"{WORKERS}:ActorRolloutRefWorker.init_model": [],
    f"{WORKERS}:ActorRolloutRefWorker.actor_worker_cls": [],
    f"{WORKERS}:ActorRolloutRefWorker.ref_worker_cls": [],
    f"{WORKERS}:TrainingWorker._postprocess_output": [
        "output",
        "global_token_num",
        "delta_time",
        "forward_only",
        "images_seqlens",
    ],
    f"{WORKERS}:TrainingWorker.__init__": ["config"],
    f"{WORKERS}:TrainingWorker.reset": [],
    f"{WORKERS}:TrainingWorker.infer_batch": ["data"],
    f"{WORKERS}:TrainingWorker.train_batch": ["data"],
    f"{ROLLOUT}.llm_server:LLMServerManager.__init__": ["config", "worker_group"],
    f"{ROLLOUT}.llm_server:LLMServerManager.create": [],
    f"{ROLLOUT}.llm_server:LLMServerManager.get_replicas": [],
    f"{CHECKPOINT}.__init__": ["config", "actor_wg", "replicas"],
    f"{CHECKPOINT}.update_weights": ["global_steps"],
    f"{CHECKPOINT}.sleep_replicas": [],
    # broadcast.py
    "verl.checkpoint_engine.base:CheckpointEngineRegistry.register": ["backend"],
    "verl.checkpoint_engine.base:split_weight_chunks": ["weights", "bucket_size"],
    "verl.checkpoint_engine.base:merge_weight_chunks": ["chunks", "bucket_size"],
    "verl.workers.rollout.utils:ensure_async_iterator": ["iterable"],
}
"""`module:qualified name` and the parameters that we give or override."""


def found(symbol: str) -> Any:
    module, _, names = symbol.partition(":")
    value = importlib.import_module(module)
    for name in names.split("."):
        if not hasattr(value, name):
            pytest.fail(f"verl has no {symbol} any more ({name} is missing)")
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("symbol", CALLED)
def test_symbol_takes_the_parameters_that_we_use(symbol: str) -> None:
    value = found(symbol)
    if isinstance(value, property):
        return
    missing = set(CALLED[symbol]) - set(inspect.signature(value).parameters)
    assert not missing, f"{symbol} has no parameter {', '.join(sorted(missing))} any more"


@pytest.mark.parametrize(
    ("symbol", "fields"),
    [
        (
            f"{WORKERS}:TrainingWorkerConfig",
            "model_type model_config engine_config optimizer_config checkpoint_config",
        ),
        (
            f"{ROLLOUT}.replica:TokenOutput",
            "token_ids log_probs stop_reason num_preempted extra_fields",
        ),
    ],
)
def test_model_has_the_fields_that_we_use(symbol: str, fields: str) -> None:
    model = found(symbol)
    known = getattr(model, "model_fields", None) or model.__dataclass_fields__
    missing = set(fields.split()) - set(known)
    assert not missing, f"{symbol} has no field {', '.join(sorted(missing))} any more"


def test_our_way_to_send_weights_has_all_that_verl_asks_of_one() -> None:
    from vagen.engines.verl.broadcast import BroadcastEngine

    missing = BroadcastEngine.__abstractmethods__
    assert not missing, f"verl.checkpoint_engine asks for {', '.join(sorted(missing))}"


def test_receivers_of_weights_are_called_what_we_look_for() -> None:
    from vagen.engines.verl.groups import RECEIVER_PREFIX

    source = inspect.getsource(found(f"{ROLLOUT}.replica:RolloutReplica.init_standalone"))
    assert f'f"{RECEIVER_PREFIX}{{' in source


def test_platform_implements_all_that_verl_asks_of_one() -> None:
    from vagen.engines.verl.cpu import CpuPlatform

    missing = CpuPlatform.__abstractmethods__
    assert not missing, f"verl.plugin.platform:PlatformBase asks for {', '.join(sorted(missing))}"


@pytest.mark.parametrize(
    "symbol",
    [
        "verl.workers.engine_workers:initialize_global_process_group_ray",
        "verl.workers.engine.fsdp.transformer_impl:CPUOffloadPolicy",
    ],
)
def test_patch_reaches_the_module_that_uses_it(symbol: str) -> None:
    import torch

    patched = found(symbol).__module__ == "vagen.engines.verl.cpu"
    assert patched is not torch.cuda.is_available(), symbol


def test_our_parts_are_registered() -> None:
    from vagen.engines.verl import torch_server
    from vagen.engines.verl.env_vars import PLATFORM
    from vagen.engines.verl.mapping import TORCH_ROLLOUT

    rollout = found(f"{ROLLOUT}.base:get_rollout_class")
    registry = found(f"{ROLLOUT}.replica:RolloutReplicaRegistry")
    assert rollout(TORCH_ROLLOUT) is torch_server.TorchAdapter
    assert registry.get(TORCH_ROLLOUT) is torch_server.TorchReplica
    assert found("verl.plugin.platform:PlatformRegistry").get(PLATFORM) is not None


def test_server_answers_every_call_that_a_replica_makes() -> None:
    from vagen.engines.verl.torch_server import TorchServer

    source = inspect.getsource(found(f"{ROLLOUT}.replica:RolloutReplica"))
    called = {
        part.split(".remote(")[0] for part in source.split("server.")[1:] if ".remote(" in part
    }
    called = {name for name in called if name.isidentifier()}
    assert called >= {"sleep", "wake_up"}, "the source of RolloutReplica reads differently now"
    missing = sorted(name for name in called if not hasattr(TorchServer, name))
    assert not missing, f"{ROLLOUT}.replica:RolloutReplica calls {', '.join(missing)} of a server"


def test_version_is_the_pinned_one() -> None:
    pins = Path(__file__).parents[3].joinpath("constraints", "verl.txt").read_text().splitlines()
    found_version = version("verl")
    assert f"verl=={found_version}" in pins, f"verl {found_version} is not what was tested"


@pytest.mark.slow
def test_vllm_leaves_out_what_we_ban(vl_model: Any) -> None:
    """verl's server masks ids of no token and images' tokens; our trainers must do the same.

    Its module needs vLLM to be imported, its function does not.
    """
    import ast
    from types import MethodType, SimpleNamespace

    import torch
    import verl

    folder = Path(verl.__file__).parent / "workers" / "rollout" / "vllm_rollout"
    name = "monkey_patch_compute_logits"
    tree = ast.parse((folder / "utils.py").read_text())
    (patch,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    known: dict[str, Any] = {"torch": torch, "MethodType": MethodType, "Optional": Optional}
    exec(compile(ast.Module([patch], []), name, "exec"), known)
    server = (folder / "vllm_async_server.py").read_text()
    assert '"vocab_size": len(self.model_config.tokenizer),' in server
    assert '"banned_token_ids": get_vision_placeholder_token_ids(' in server

    ours = vl_model.processor
    rows = vl_model.model.lm_head.weight.shape[0]
    model = SimpleNamespace(compute_logits=lambda: torch.zeros(1, rows))
    placeholders = ours.tokenizer.convert_tokens_to_ids(["<|image_pad|>", "<|video_pad|>"])
    known[name](model, len(ours.tokenizer), placeholders)
    masked = torch.isneginf(model.compute_logits()[0]).nonzero().flatten().tolist()
    assert len(masked) > len(placeholders)
    assert set(masked) <= set(ours.banned_ids)


def test_vllm_is_told_the_rest_of_our_bans(vl_model: Any) -> None:
    from types import SimpleNamespace

    from vagen.engines.verl.rollout_workers import BANNED_LOGIT, ServerPolicy
    from vagen.rollout.types import Sampling

    ours = vl_model.processor
    config = SimpleNamespace(
        actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(name="vllm"))
    )
    policy = ServerPolicy(SimpleNamespace(config=config), ours, seeds=True)
    told = policy._vllm(Sampling())["logit_bias"]
    beyond = range(len(ours.tokenizer), vl_model.model.lm_head.weight.shape[0])
    assert sorted([*told, *beyond]) == ours.banned_ids
    assert set(told.values()) == {BANNED_LOGIT}
