"""What we use of verl and the transfer queue is there, under the names and parameters we use.

Subclasses, patches and calls depend on it. If one of these fails, the version of verl has moved the
symbol that the failure names; everything that uses it is under `vagen/engines/verl`.
"""

import importlib
import inspect
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

AGENT = "verl.experimental.agent_loop.agent_loop"
TRAINER = "verl.trainer.ppo.v1.trainer_base"
ROLLOUT = "verl.workers.rollout"
CHECKPOINT = "verl.checkpoint_engine.base:CheckpointEngineManager"
CALLED: dict[str, list[str]] = {
    # platform.py
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
    # agent_loop.py
    f"{AGENT}:AgentLoopBase.run": ["sampling_params"],
    f"{AGENT}:AgentLoopOutput.as_dict": [],
    f"{AGENT}:AgentLoopManager.create": [],
    f"{AGENT}:AgentLoopManager.__init__": ["config", "llm_client", "reward_loop_worker_handles"],
    "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopManagerTQ.generate_sequences": ["prompts"],
    # rollout.py
    "verl.utils.tensordict_utils:get_tensordict": ["tensor_dict"],
    "verl.utils.tensordict_utils:assign_non_tensor_data": ["tensor_dict", "key", "val"],
    "verl.utils.tensordict_utils:get": ["tensordict", "key"],
    "transfer_queue:init": ["conf"],
    "transfer_queue:close": [],
    "transfer_queue:kv_batch_put": ["keys", "partition_id", "tags"],
    "transfer_queue:kv_batch_get": ["keys", "partition_id", "select_fields"],
    "transfer_queue:kv_list": ["partition_id"],
    "transfer_queue:kv_clear": ["keys", "partition_id"],
    # trainer.py
    "transfer_queue:kv_put": ["key", "partition_id", "tag"],
    f"{TRAINER}:register_trainer": ["name"],
    f"{TRAINER}:PPOTrainer.__init__": ["config"],
    f"{TRAINER}:PPOTrainer.init": [],
    f"{TRAINER}:PPOTrainer.fit": ["agent_loop_manager"],
    f"{TRAINER}:PPOTrainer.step": ["metrics", "timing_raw"],
    f"{TRAINER}:PPOTrainer.get_llm_client": [],
    f"{TRAINER}:PPOTrainer._build_replay_buffer": [],
    f"{TRAINER}:PPOTrainer._init_dataloader": [],
    f"{TRAINER}:PPOTrainer._init_resource_pool_mgr": [],
    f"{TRAINER}:PPOTrainer._load_checkpoint": [],
    f"{TRAINER}:PPOTrainer._save_checkpoint": [],
    f"{TRAINER}:PPOTrainer._compute_metrics": ["batch", "metrics"],
    "verl.trainer.ppo.v1:PPOTrainerSync.on_init_end": [],
    "verl.trainer.ppo.v1:PPOTrainerSync.on_step_end": [],
    f"{CHECKPOINT}.update_weights": ["global_steps"],
    f"{CHECKPOINT}.sleep_replicas": [],
    # runner.py
    "verl.trainer.main_ppo:run_ppo": ["config", "task_runner_class"],
    "verl.utils.config:validate_config": ["config", "use_reference_policy", "use_critic"],
    "verl.utils.device:auto_set_device": ["config"],
}
"""`module:qualified name` and the parameters that we give or override."""

ACTORS = {
    "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ": ["generate_sequences"],
    "verl.trainer.main_ppo:TaskRunnerV1": ["run", "init_agent_loop_manager"],
}
"""Ray actor classes whose plain class we subclass, and methods that we rely on."""


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


@pytest.mark.parametrize("symbol", ACTORS)
def test_actor_has_the_class_behind_it(symbol: str) -> None:
    plain = found(f"{symbol}.__ray_metadata__.modified_class")
    missing = [name for name in ACTORS[symbol] if not hasattr(plain, name)]
    assert not missing, f"{symbol} has no {', '.join(missing)} any more"


@pytest.mark.parametrize(
    ("symbol", "fields"),
    [
        (
            f"{AGENT}:AgentLoopOutput",
            "prompt_ids response_ids response_mask response_logprobs reward_score num_turns "
            "metrics extra_fields",
        ),
        (
            f"{ROLLOUT}.replica:TokenOutput",
            "token_ids log_probs stop_reason num_preempted extra_fields",
        ),
    ],
)
def test_model_has_the_fields_that_we_use(symbol: str, fields: str) -> None:
    missing = set(fields.split()) - set(found(symbol).model_fields)
    assert not missing, f"{symbol} has no field {', '.join(sorted(missing))} any more"


def test_platform_implements_all_that_verl_asks_of_one() -> None:
    from vagen.engines.verl.platform import CpuPlatform

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

    assert getattr(found(symbol), "for_cpu", False) is not torch.cuda.is_available(), symbol


def test_our_parts_are_registered() -> None:
    from vagen.engines.verl import torch_server, trainer
    from vagen.engines.verl.environment import PLATFORM, TORCH_ROLLOUT

    rollout = found(f"{ROLLOUT}.base:get_rollout_class")
    registry = found(f"{ROLLOUT}.replica:RolloutReplicaRegistry")
    assert rollout(TORCH_ROLLOUT) is torch_server.TorchAdapter
    assert registry.get(TORCH_ROLLOUT) is torch_server.TorchReplica
    assert found(f"{TRAINER}:get_trainer_cls")("vagen_sync") is trainer.VagenTrainer
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
