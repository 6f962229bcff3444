"""Our experiment and infra as verl's configuration: composed, converted and validated by verl."""

import importlib
from collections.abc import Sequence
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from vagen.config import ConfigError, ExperimentConfig
from vagen.config.presets import PRESETS
from vagen.config.schema import has_reference
from vagen.engines.verl.config import lay, verl_config, verl_defaults
from vagen.engines.verl.mapping import BROADCAST, BUCKET_MIB, SEEDED_WORKER, Setting, settings
from vagen.experiment.checks import has_critic
from vagen.experiment.load import load_experiment, load_infra
from vagen.models.attention import ATTENTION
from vagen.models.processor import load_processor
from vagen.models.tiny_policy import build_tiny_policy, sampled_levels

GPU = ["engine=verl", "device=cuda", "dtype=bfloat16", "verl.n_gpus_per_node=4"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    experiment = load_experiment("frozenlake-tiny")
    build_tiny_policy(experiment, sampled_levels(experiment), folder)
    return str(folder)


def composed(
    model: str, overrides: Sequence[str] = (), infra: Sequence[str] = ("engine=verl", "device=cpu")
) -> DictConfig:
    experiment = load_experiment("frozenlake-tiny", overrides)
    config = verl_config(experiment, load_infra(None, infra), model)
    OmegaConf.resolve(config)
    return config


def check_by_verl(config: DictConfig, experiment: ExperimentConfig) -> None:
    from verl.utils.config import validate_config

    validate_config(config, has_reference(experiment), has_critic(experiment))


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_becomes_a_configuration_that_verl_accepts(model: str, preset: str) -> None:
    overrides = [f"preset={preset}", "data.train_batch_size=8"]
    overrides += ["actor_rollout_ref.actor.ppo_mini_batch_size=8"]
    experiment = load_experiment("frozenlake-tiny", overrides)
    config = verl_config(experiment, load_infra(None, ["engine=verl", "device=cpu"]), model)
    OmegaConf.resolve(config)
    check_by_verl(config, experiment)


@pytest.mark.parametrize("machine", [("engine=verl", "device=cpu"), tuple(GPU)])
def test_verls_dataclasses_hold_what_we_set(model: str, machine: Sequence[str]) -> None:
    from verl.utils.config import omega_conf_to_dataclass

    experiment = load_experiment("frozenlake-tiny", ["seed=7", "critic.grad_clip=0.5"])
    infra = load_infra(None, machine)
    config = verl_config(experiment, infra, model)
    OmegaConf.resolve(config)
    compute = "fp32" if infra.device == "cpu" else "bf16"
    actor: Any = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert actor.engine.strategy == "fsdp2"
    assert actor.engine.model_dtype == "fp32"
    assert actor.engine.mixed_precision["param_dtype"] == compute
    assert actor.engine.seed == 7
    assert actor.optim.lr == experiment.actor_rollout_ref.actor.optim.lr
    assert actor.optim.lr_scheduler_type == "constant"
    assert actor.ppo_max_token_len_per_gpu == 16384
    reference: Any = omega_conf_to_dataclass(config.actor_rollout_ref.ref.fsdp_config)
    assert reference.forward_only
    assert reference.model_dtype == compute
    assert reference.mixed_precision["param_dtype"] == compute
    critic: Any = omega_conf_to_dataclass(config.critic)
    assert critic.engine.strategy == "fsdp2"
    assert critic.engine.mixed_precision["param_dtype"] == compute
    assert critic.optim.clip_grad == 0.5
    assert critic.ppo_max_token_len_per_gpu == 16384
    rollout: Any = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert rollout.name == "vllm"
    assert rollout.dtype == infra.dtype
    assert (rollout.prompt_length, rollout.response_length) == (128, 640)
    assert rollout.max_model_len == 640
    vllm = rollout.engine_kwargs["vllm"]
    assert vllm["limit_mm_per_prompt"] == {"image": 5, "video": 0}
    assert "mm_processor_kwargs" not in vllm
    assert rollout.calculate_log_probs
    assert rollout.log_prob_max_token_len_per_gpu == 16384
    network: Any = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    assert network.hf_config._attn_implementation == ATTENTION
    assert network.use_remove_padding
    padded = composed(model, infra=[*machine, "verl.attention=sdpa"])
    network = omega_conf_to_dataclass(padded.actor_rollout_ref.model)
    assert network.hf_config._attn_implementation == "sdpa"
    assert not network.use_remove_padding


def test_ranks_servers_and_concurrency(model: str) -> None:
    layout = ["verl.nnodes=2", "verl.ray_address=auto", "verl.tensor_model_parallel_size=2"]
    config = composed(model, infra=[*GPU, *layout])
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (2, 4)
    assert config.trainer.device == "cuda"
    rollout = config.actor_rollout_ref.rollout
    assert rollout.tensor_model_parallel_size == 2
    # 128 trajectories over four servers of two GPUs each.
    assert rollout.max_num_seqs == 32
    assert rollout.free_cache_engine
    init = config.ray_kwargs.ray_init
    assert init.address == "auto"
    # A running cluster knows its own resources, Ray refuses to be told.
    assert "num_gpus" not in init
    assert init.num_cpus is None


def test_requests_to_vllm_have_seeds_on_a_cpu_or_where_it_is_asked_for(model: str) -> None:
    def has_seeded_workers(*infra: str) -> bool:
        options = composed(model, infra=infra).actor_rollout_ref.rollout.engine_kwargs.vllm
        return options.get("worker_extension_cls") == SEEDED_WORKER

    assert has_seeded_workers(*GPU)
    assert not has_seeded_workers(*GPU, "verl.request_seeds=true")
    assert not has_seeded_workers(*GPU, "verl.rollout=torch")
    assert not has_seeded_workers("engine=verl", "device=cpu")
    assert has_seeded_workers("engine=verl", "device=cpu", "verl.request_seeds=false")


def test_vllm_measures_its_memory_with_the_frames_of_the_environments(model: str) -> None:
    """As verl gives it to vLLM: without the option vLLM takes the model's largest picture."""
    from verl.utils.config import omega_conf_to_dataclass

    from vagen.engines.verl.launch import largest_frame

    experiment = load_experiment("frozenlake-tiny")
    infra = load_infra(None, GPU)
    pixels = largest_frame(experiment, infra, model)
    assert pixels == (4 * 32) ** 2  # tiles and their pixels
    odd = ["envs.frozenlake.env_config.tile_size=36"]  # the image processor scales such frames
    width, height = load_processor(model).read_size((4 * 36, 4 * 36))
    assert width != 4 * 36
    assert largest_frame(load_experiment("frozenlake-tiny", odd), infra, model) == width * height
    config = verl_config(experiment, infra, model, cpu=False, frame_pixels=pixels)
    OmegaConf.resolve(config)
    rollout: Any = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    options = rollout.engine_kwargs["vllm"]["mm_processor_kwargs"]
    assert type(options) is dict  # as verl writes it to vLLM's command line
    assert options == {"max_pixels": pixels}
    assert largest_frame(experiment, load_infra(None, [*GPU, "verl.rollout=torch"]), model) is None
    words = load_experiment("frozenlake-tiny", ["envs.frozenlake.env_config.render_mode=text"])
    assert largest_frame(words, infra, model) is None


def test_a_ray_of_our_own_is_local_and_counts_ranks_as_gpus(model: str) -> None:
    config = composed(model, infra=["engine=verl", "device=cpu", "verl.n_gpus_per_node=2"])
    init = config.ray_kwargs.ray_init
    assert (init.address, init.num_gpus) == ("local", 2)
    assert config.actor_rollout_ref.rollout.enable_sleep_mode is False
    on_gpu = composed(model, infra=GPU).ray_kwargs.ray_init
    assert on_gpu.address == "local"
    assert "num_gpus" not in on_gpu


def test_groups_of_ranks_with_a_copy_each(model: str) -> None:
    overrides = ["preset=grpo_mask", "rollout_manager.n_trajectory=2", "data.train_batch_size=64"]
    overrides += ["algorithm.kl_ctrl.kl_coef=0.05"]
    config = composed(model, overrides, infra=[*GPU, "verl.fsdp_size=2"])
    assert config.actor_rollout_ref.actor.fsdp_config.fsdp_size == 2
    assert config.actor_rollout_ref.ref.fsdp_config.fsdp_size == 2
    assert composed(model, infra=[*GPU, "verl.fsdp_size=2"]).critic.fsdp.fsdp_size == 2
    assert composed(model, infra=GPU).critic.fsdp.fsdp_size == -1
    with pytest.raises(ConfigError, match="3 does not divide the 4 ranks"):
        composed(model, infra=[*GPU, "verl.fsdp_size=3"])


def test_servers_with_gpus_of_their_own(model: str) -> None:
    layout = ["verl.nnodes=2", "verl.ray_address=auto", "verl.rollout_gpus=4"]
    layout.append("verl.tensor_model_parallel_size=2")
    config = composed(model, infra=[*GPU, *layout])
    rollout = config.actor_rollout_ref.rollout
    assert not config.actor_rollout_ref.hybrid_engine
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (2, 4)
    assert (rollout.nnodes, rollout.n_gpus_per_node) == (2, 2)
    # 128 trajectories over two servers of two GPUs each.
    assert rollout.max_num_seqs == 64
    assert not rollout.free_cache_engine
    engine = rollout.checkpoint_engine
    assert (engine.backend, engine.update_weights_bucket_megabytes) == (BROADCAST, BUCKET_MIB)
    assert importlib.import_module(engine.custom_backend_module).BROADCAST == BROADCAST
    here = ["engine=verl", "device=cpu", "verl.n_gpus_per_node=2", "verl.rollout_gpus=1"]
    assert composed(model, infra=here).ray_kwargs.ray_init.num_gpus == 3


def test_adapters_and_the_servers_get_merged_weights(model: str) -> None:
    overrides = ["actor_rollout_ref.model.lora_rank=8", "critic.model.lora_rank=4"]
    overrides += ["actor_rollout_ref.model.target_modules=[q_proj,v_proj]"]
    config = composed(model, overrides)
    actor, critic = config.actor_rollout_ref.model, config.critic.model
    assert (actor.lora_rank, critic.lora_rank) == (8, 4)
    assert actor.target_modules == ["q_proj", "v_proj"]
    assert actor.lora.merge
    assert composed(model).actor_rollout_ref.model.lora.merge is False


def test_offload_memory_and_token_budget(model: str) -> None:
    from vagen.engines.verl.groups import _critic_config

    layout = ["param_offload=true", "optimizer_offload=true", "gpu_memory_utilization=0.25"]
    layout += ["max_token_len_per_gpu=4096", "gradient_checkpointing=false"]
    config = composed(model, infra=[*GPU, *(f"verl.{word}" for word in layout)])
    for sharding in (config.actor_rollout_ref.actor.fsdp_config, config.critic.fsdp):
        assert sharding.param_offload
        assert sharding.optimizer_offload
    assert config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 4096
    assert config.actor_rollout_ref.ref.log_prob_max_token_len_per_gpu == 4096
    assert config.critic.forward_max_token_len_per_gpu == 4096
    assert config.actor_rollout_ref.rollout.gpu_memory_utilization == 0.25
    assert not config.actor_rollout_ref.model.enable_gradient_checkpointing
    critic = _critic_config(config).engine_config
    assert config.critic.ppo_infer_max_token_len_per_gpu == 4096
    assert (critic.max_token_len_per_gpu, critic.infer_max_token_len_per_gpu) == (4096, 4096)
    on_cpu = composed(model, infra=["engine=verl", "device=cpu", "verl.agent_workers=3"])
    assert on_cpu.ray_kwargs.ray_init.num_cpus == 19


def test_the_environment_reaches_rays_workers(model: str) -> None:
    experiment, infra = load_experiment("frozenlake-tiny"), load_infra(None, ["engine=verl"])
    config = verl_config(experiment, infra, model, cpu=True, environment={"SOME": "thing"})
    assert config.ray_kwargs.ray_init.runtime_env.env_vars == {"SOME": "thing"}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (Setting("trainer.nodes", 1, ""), "no option `trainer.nodes`"),
        (Setting("trainer.gone.key", 1, "", new=True), "no option `trainer.gone.key`"),
        (Setting("trainer.nnodes", 1, "", new=True), "an option of its own `trainer.nnodes`"),
    ],
)
def test_a_verl_with_other_options_is_refused(setting: Setting, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        lay(verl_defaults(), [setting])


def test_no_option_is_set_twice() -> None:
    experiment = load_experiment("frozenlake-tiny", ["actor_rollout_ref.model.lora_rank=8"])
    for machine in (["engine=verl", "device=cpu"], GPU):
        infra = load_infra(None, machine)
        keys = [s.key for s in settings(experiment, infra, "m", cpu=infra.device == "cpu")]
        assert len(keys) == len(set(keys))


def test_any_other_option_of_verl_is_passed_through(model: str) -> None:
    from verl.utils.config import omega_conf_to_dataclass

    extra = {
        "actor_rollout_ref.rollout.enable_chunked_prefill": False,
        "actor_rollout_ref.actor.fsdp_config.forward_prefetch": True,
        # Only the dataclass has it.
        "critic.ppo_infer_micro_batch_size_per_gpu": 3,
        # Empty in the defaults, or handed to Ray.
        "actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space": 8,
        "ray_kwargs.ray_init.object_store_memory": 10**9,
    }
    words = [f"verl.extra.{key}={str(value).lower()}" for key, value in extra.items()]
    config = composed(model, infra=[*GPU, *words])
    for key, value in extra.items():
        assert OmegaConf.select(config, key) == value
    rollout: Any = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert rollout.enable_chunked_prefill is False
    critic: Any = omega_conf_to_dataclass(config.critic)
    assert critic.ppo_infer_micro_batch_size_per_gpu == 3


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("actor_rollout_ref.rollout.enable_chunked_prefil", "rollout.enable_chunked_prefill`?"),
        ("actor_rollout_ref.actor.fsdp_config.forward_prefech", "fsdp_config.forward_prefetch`?"),
        ("actor_rollout_ref.rollout.enforce_eager.more", "rollout.enforce_eager`?"),
    ],
)
def test_an_option_that_verl_lacks_is_refused_with_the_nearest(
    model: str, key: str, words: str
) -> None:
    with pytest.raises(ConfigError, match="unknown option of verl") as error:
        composed(model, infra=[*GPU, f"verl.extra.{key}=1"])
    assert words in str(error.value)
