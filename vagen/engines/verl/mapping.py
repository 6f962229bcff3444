"""Maps experiment and infra to options of verl's `ppo_trainer`, without importing verl.

Unlisted options keep verl's defaults. The stages and worker subclasses implement losses, KL terms,
advantages, mini batches, learning rate schedules and evaluation, so that both engines compute the
same.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

from vagen.config import ConfigError
from vagen.config.infra import InfraConfig, dotted
from vagen.config.schema import (
    ALL_LINEAR,
    ExperimentConfig,
    LoraConfig,
    OptimConfig,
    context_window,
    has_reference,
)
from vagen.engines.verl.env_vars import SETUP_HOOK
from vagen.experiment.checks import has_critic
from vagen.experiment.checks_infra import check_verl

TORCH_ROLLOUT = "vagen_torch"
"""verl's name for our rollout server (`torch_server.py`)."""
ROLLOUTS = {"vllm": "vllm", "torch": TORCH_ROLLOUT}
"""verl's names for the values of `infra.verl.rollout`."""
BROADCAST = "vagen_broadcast"
"""verl's name for our checkpoint engine, which sends weights to other GPUs (`broadcast.py`)."""
BUCKET_MIB = 512
"""Size of a bucket of weights sent to other GPUs, each of which holds three at a time."""
CPU_BUCKET_MIB = 16
"""Size of a bucket between CPU processes, and from a rank to a server on its node."""
STRATEGY = "fsdp2"
"""verl's sharding strategy."""
FROZEN_TOWER = "freeze_vision_tower"
"""Key in the overrides of a model's configuration: whether the vision tower is frozen."""
SLICE = 512
"""Number of tokens whose logits are in float32 at once (`networks.py`)."""
SEEDED_WORKER = "vagen.engines.verl.vllm_worker.SeededWorker"
"""The extension of vLLM's workers that can be seeded."""
BUDGET = "infra.verl.max_token_len_per_gpu, actor_rollout_ref.actor.ppo_max_token_len"
"""Source of the token limit of a micro batch."""
VLLM = "actor_rollout_ref.rollout.engine_kwargs.vllm"
"""verl's section of options that it passes on to vLLM."""
EXTRA = "infra.verl.extra"
"""Source of settings that are passed through to verl."""


@dataclass(frozen=True, slots=True)
class Setting:
    """An option of verl's configuration and our value."""

    key: str
    """verl's dotted key."""
    value: Any
    source: str
    """Our keys that determine it, comma-separated; empty if it is the same for every run."""
    new: bool = False
    """Whether verl's defaults lack the key although its dataclass or Ray reads it."""


def is_cpu(infra: InfraConfig) -> bool:
    """Whether it runs without GPUs: because of `infra.device`, or because there are none."""
    import torch

    return infra.device == "cpu" or (infra.device == "auto" and not torch.cuda.is_available())


def seeds_requests(infra: InfraConfig, *, cpu: bool) -> bool:
    """Whether requests to rollout servers carry seeds; otherwise a server has one per rollout."""
    seeds = infra.verl.request_seeds
    return infra.verl.rollout == "torch" or (cpu if seeds == "auto" else seeds)


def token_budget(experiment: ExperimentConfig, infra: InfraConfig) -> int:
    """Token limit of a micro batch on one rank."""
    return infra.verl.max_token_len_per_gpu or experiment.actor_rollout_ref.actor.ppo_max_token_len


def ranks(infra: InfraConfig) -> int:
    """Number of training processes, one GPU each."""
    return infra.verl.nnodes * infra.verl.n_gpus_per_node


def shards(infra: InfraConfig) -> int:
    """Number of ranks that share one copy of a network."""
    return min(infra.verl.fsdp_size or ranks(infra), ranks(infra))


def servers(infra: InfraConfig) -> int:
    """Number of rollout servers: groups of GPUs with one copy of the weights."""
    return (infra.verl.rollout_gpus or ranks(infra)) // infra.verl.tensor_model_parallel_size


def gpus(infra: InfraConfig) -> int:
    """Number of GPUs of the engine."""
    return ranks(infra) + infra.verl.rollout_gpus


def settings(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    model_path: str,
    *,
    cpu: bool,
    environment: Mapping[str, str] | None = None,
    frame_pixels: int | None = None,
) -> list[Setting]:
    """All settings of verl's configuration.

    Args:
        experiment: The experiment with resolved environments.
        infra: Its infrastructure.
        model_path: Directory or hub id that actor, critic, reference and servers load.
        cpu: Whether it runs without GPUs.
        environment: Environment variables for all processes of a Ray started here.
        frame_pixels: Pixels of the largest frame as the model reads it; None: not known.

    Raises:
        ConfigError: verl cannot run this combination, or `infra.verl.extra` sets a reserved
            option.
    """
    check_verl(experiment, infra)
    fixed = [
        *_trainer(infra, cpu=cpu),
        *_network("actor_rollout_ref.model", experiment, infra, model_path),
        *_lora("actor_rollout_ref.model", experiment.actor_rollout_ref.model),
        *_actor_and_reference(experiment, infra, cpu=cpu),
        *_critic(experiment, infra, model_path, cpu=cpu),
        *_rollout(experiment, infra, frame_pixels, cpu=cpu),
        *_ray(infra, environment or {}, cpu=cpu),
    ]
    sources = {
        key: setting.source for setting in fixed for key in dotted({setting.key: setting.value})
    }
    for key in infra.verl.extra:
        for own, source in sources.items():
            if f"{own}.".startswith(f"{key}.") or key.startswith(f"{own}."):
                names = " and ".join(f"`{name}`" for name in source.split(", "))
                advice = f"set {names} instead" if source else "it is the same for every run"
                raise ConfigError(f"`{EXTRA}.{key}`: we set verl's `{own}`; {advice}")
    return [*fixed, *(Setting(key, value, EXTRA) for key, value in infra.verl.extra.items())]


def _trainer(infra: InfraConfig, *, cpu: bool) -> Iterator[Setting]:
    yield Setting("trainer.device", "cpu" if cpu else "cuda", "infra.device")
    for name in ("nnodes", "n_gpus_per_node"):
        yield Setting(f"trainer.{name}", getattr(infra.verl, name), f"infra.verl.{name}")


def _network(
    key: str, experiment: ExperimentConfig, infra: InfraConfig, model_path: str
) -> Iterator[Setting]:
    kernel, source = infra.verl.attention, "infra.verl.attention"
    yield Setting(f"{key}.path", model_path, "actor_rollout_ref.model.path")
    yield Setting(f"{key}.override_config.attn_implementation", kernel, source, new=True)
    yield Setting(f"{key}.use_remove_padding", kernel == "packed", source)
    if experiment.actor_rollout_ref.model.freeze_vision_tower:
        option = f"actor_rollout_ref.model.{FROZEN_TOWER}"
        yield Setting(f"{key}.override_config.{FROZEN_TOWER}", True, option, new=True)
    yield Setting(
        f"{key}.enable_gradient_checkpointing",
        infra.verl.gradient_checkpointing is not False,
        "infra.verl.gradient_checkpointing",
    )


def _lora(key: str, lora: LoraConfig) -> Iterator[Setting]:
    yield Setting(f"{key}.lora_rank", lora.lora_rank, f"{key}.lora_rank")
    if not lora.lora_rank:
        return
    yield Setting(f"{key}.lora_alpha", lora.lora_alpha, f"{key}.lora_alpha")
    targets: Any = lora.target_modules
    if targets != ALL_LINEAR:
        names = [targets] if isinstance(targets, str) else list(targets)
        wild = any(set(name) & set("*?[") for name in names)
        # peft reads a list as names, and one string as a regular expression.
        targets = "|".join(translate(f"*.{name}") for name in names) if wild else names
    yield Setting(f"{key}.target_modules", targets, f"{key}.target_modules")
    # Servers get merged weights, since vLLM does not support adapters in vision towers.
    yield Setting(f"{key}.lora.merge", True, f"{key}.lora_rank")


def _actor_and_reference(
    experiment: ExperimentConfig, infra: InfraConfig, *, cpu: bool
) -> Iterator[Setting]:
    key = "actor_rollout_ref.actor"
    actor = experiment.actor_rollout_ref.actor
    yield Setting(f"{key}.strategy", STRATEGY, "")
    yield from _batches(key, experiment, infra)
    yield from _optimizer(key, actor.optim, actor.grad_clip)
    yield from _sharding(f"{key}.fsdp_config", experiment, infra, cpu=cpu)
    if has_reference(experiment):
        # The frozen reference is stored in the type that it computes in.
        yield from _precision("actor_rollout_ref.ref.fsdp_config", infra, master=False)
        yield _groups("actor_rollout_ref.ref.fsdp_config", infra)
        if cpu:
            yield Setting(
                "actor_rollout_ref.ref.fsdp_config.use_torch_compile", False, "infra.device"
            )


def _critic(
    experiment: ExperimentConfig, infra: InfraConfig, model_path: str, *, cpu: bool
) -> Iterator[Setting]:
    if not has_critic(experiment):
        return
    critic = experiment.critic
    yield Setting("critic.strategy", STRATEGY, "")
    yield from _network("critic.model", experiment, infra, model_path)
    yield from _lora("critic.model", critic.model)
    yield from _batches("critic", experiment, infra)
    # Its default is a constant instead of the actor's limit.
    name, budget = "ppo_infer_max_token_len_per_gpu", token_budget(experiment, infra)
    yield Setting(f"critic.{name}", budget, BUDGET, new=True)
    yield from _optimizer("critic", critic.optim, critic.grad_clip)
    yield from _sharding("critic.fsdp", experiment, infra, cpu=cpu)


def _batches(key: str, experiment: ExperimentConfig, infra: InfraConfig) -> Iterator[Setting]:
    yield Setting(f"{key}.use_dynamic_bsz", True, "")
    yield Setting(f"{key}.ppo_max_token_len_per_gpu", token_budget(experiment, infra), BUDGET)


def _optimizer(key: str, optim: OptimConfig, grad_clip: float) -> Iterator[Setting]:
    yield Setting(f"{key}.optim.lr", optim.lr, f"{key}.optim.lr")
    yield Setting(f"{key}.optim.weight_decay", optim.weight_decay, f"{key}.optim.weight_decay")
    yield Setting(f"{key}.optim.betas", list(optim.betas), f"{key}.optim.betas")
    yield Setting(f"{key}.optim.clip_grad", grad_clip, f"{key}.grad_clip")
    # The engine sets the learning rate before each step.
    yield Setting(f"{key}.optim.lr_scheduler_type", "constant", "")
    yield Setting(f"{key}.optim.lr_warmup_steps", 0, "")


def _sharding(
    key: str, experiment: ExperimentConfig, infra: InfraConfig, *, cpu: bool
) -> Iterator[Setting]:
    yield from _precision(key, infra, master=True)
    yield _groups(key, infra)
    for name in ("param_offload", "optimizer_offload"):
        yield Setting(f"{key}.{name}", getattr(infra.verl, name), f"infra.verl.{name}")
    yield Setting(f"{key}.seed", experiment.seed, "seed")
    if cpu:
        yield Setting(f"{key}.use_torch_compile", False, "infra.device")


def _groups(key: str, infra: InfraConfig) -> Setting:
    return Setting(f"{key}.fsdp_size", infra.verl.fsdp_size or -1, "infra.verl.fsdp_size")


def _precision(key: str, infra: InfraConfig, *, master: bool) -> Iterator[Setting]:
    """Types for storage and computation.

    Trained weights are always float32, since bfloat16 loses steps of 1e-6. `bfloat16` applies to
    computation; gradients are reduced in float32.
    """
    compute = {"float32": "fp32", "bfloat16": "bf16"}[infra.dtype]
    yield Setting(f"{key}.model_dtype", "fp32" if master else compute, "infra.dtype")
    types = {"param_dtype": compute, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    yield Setting(f"{key}.mixed_precision", types, "infra.dtype", new=True)


def _rollout(
    experiment: ExperimentConfig, infra: InfraConfig, frame_pixels: int | None, *, cpu: bool
) -> Iterator[Setting]:
    key, data = "actor_rollout_ref.rollout", experiment.data
    rollout, layout = experiment.actor_rollout_ref.rollout, infra.verl
    yield Setting(f"{key}.name", ROLLOUTS[layout.rollout], "infra.verl.rollout")
    yield Setting(f"{key}.dtype", infra.dtype, "infra.dtype")
    for name in ("tensor_model_parallel_size", "gpu_memory_utilization"):
        yield Setting(f"{key}.{name}", getattr(layout, name), f"infra.verl.{name}")
    total = data.max_trajectory_length
    yield Setting(f"{key}.max_model_len", total, "data.max_trajectory_length")
    yield Setting("data.max_prompt_length", data.max_prompt_length, "data.max_prompt_length")
    # The "response" is everything after the prompt, including later observations.
    yield Setting("data.max_response_length", total, "data.max_trajectory_length")
    yield Setting(f"{key}.max_num_batched_tokens", max(8192, total), "data.max_trajectory_length")
    yield Setting(
        f"{key}.max_num_seqs",
        -(-rollout.max_concurrency // servers(infra)),
        "actor_rollout_ref.rollout.max_concurrency",
    )
    images = most_images(experiment)
    if images:
        limits, source = {"image": images, "video": 0}, "rollout_manager.max_turns, envs"
        yield Setting(f"{VLLM}.limit_mm_per_prompt", limits, source, new=True)
    if images and frame_pixels:
        # vLLM measures its memory with as many of the largest pictures as a step encodes. Without
        # this option those are the model's, 3584 x 3584 pixels for Qwen2.5-VL. Options of
        # `limit_mm_per_prompt` would only shrink the pictures, not raise their number.
        options = {"max_pixels": frame_pixels}
        yield Setting(f"{VLLM}.mm_processor_kwargs", options, "envs", new=True)
    for name in ("temperature", "top_p", "top_k"):
        yield Setting(f"{key}.{name}", getattr(rollout, name), f"actor_rollout_ref.rollout.{name}")
    yield Setting(f"{key}.n", 1, "")
    yield Setting(f"{key}.seed", experiment.seed, "seed")
    yield Setting(f"{key}.calculate_log_probs", True, "")
    yield Setting(f"{key}.logprobs_mode", "processed_logprobs", "")
    yield Setting(f"{key}.load_format", "auto", "")
    if not seeds_requests(infra, cpu=cpu):
        name, source = f"{VLLM}.worker_extension_cls", "infra.device, infra.verl.request_seeds"
        yield Setting(name, SEEDED_WORKER, source, new=True)
    if layout.rollout_gpus:
        source = "infra.verl.rollout_gpus"
        yield Setting("actor_rollout_ref.hybrid_engine", False, source)
        yield Setting(f"{key}.nnodes", layout.nnodes, source)
        yield Setting(f"{key}.n_gpus_per_node", layout.server_gpus_per_node, source)
        yield Setting(f"{key}.checkpoint_engine.backend", BROADCAST, source)
        module = "vagen.engines.verl.broadcast"
        yield Setting(f"{key}.checkpoint_engine.custom_backend_module", module, source)
    if cpu or layout.rollout_gpus or experiment.rollout_manager.one_step_off:
        source = "infra.device, infra.verl.rollout_gpus, rollout_manager.one_step_off"
        yield Setting(f"{key}.free_cache_engine", False, source)
        yield Setting(f"{key}.enable_sleep_mode", False, source, new=True)
    if cpu:
        yield Setting(f"{key}.enforce_eager", True, "infra.device")
    if cpu or layout.rollout_gpus:
        name = f"{key}.checkpoint_engine.update_weights_bucket_megabytes"
        size = CPU_BUCKET_MIB if cpu else BUCKET_MIB
        yield Setting(name, size, "infra.device, infra.verl.rollout_gpus")


def most_images(experiment: ExperimentConfig) -> int:
    """Maximum number of images in one prompt; 0 if all environments are text."""
    if all(spec.env_config["render_mode"] == "text" for spec in experiment.envs.values()):
        return 0
    manager = experiment.rollout_manager
    window = None if manager.context == "gate" else context_window(experiment)
    return window or manager.max_turns


def _ray(infra: InfraConfig, environment: Mapping[str, str], *, cpu: bool) -> Iterator[Setting]:
    key, address = "ray_kwargs.ray_init", infra.verl.ray_address
    yield Setting(f"{key}.address", address or "local", "infra.verl.ray_address", new=True)
    if environment:
        yield Setting(f"{key}.runtime_env.env_vars", dict(environment), "", new=True)
        hook = f"{key}.runtime_env.worker_process_setup_hook"
        yield Setting(hook, SETUP_HOOK, "", new=True)
    if cpu and address is None:
        # Ray schedules ranks by GPUs; on a CPU, GPUs and cores are nominal.
        count, source = gpus(infra), "infra.verl.n_gpus_per_node, infra.verl.rollout_gpus"
        yield Setting(f"{key}.num_gpus", count, source, new=True)
        # The dashboard's processes would double the start time.
        yield Setting(f"{key}.include_dashboard", False, "infra.device", new=True)
        cores = 8 + 8 * count + infra.verl.agent_workers
        yield Setting(f"{key}.num_cpus", cores, f"{source}, infra.verl.agent_workers")
