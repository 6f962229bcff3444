"""Starts the distributed engine from this process: Ray, verl's worker groups and servers."""

import math
import time
from pathlib import Path
from typing import Any

from vagen.config import ConfigError, ExperimentConfig, InfraConfig
from vagen.engines.base import Engine
from vagen.engines.verl.env_vars import configure
from vagen.engines.verl.mapping import ROLLOUTS, gpus, is_cpu, ranks
from vagen.models.families import family_of
from vagen.models.processor import load_config, load_processor
from vagen.service import environments_of

NOT_COMPUTED = {
    **dict.fromkeys(("glm4v", "glm46v"), "verl's own forward pass was not compared with ours"),
    "gemma3": "its images attend in both directions",
    "llava_onevision": "verl shards the embedding of its vision tower twice",
}
"""Families that this engine cannot train, and why."""
EARLIER_ENGINE_SECONDS = 60.0
"""Seconds that the processes of an earlier engine may take to end."""


def start(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    model_path: str | Path,
    *,
    version: str = "initial",
) -> Engine:
    """An engine with networks loaded from `model_path`, driven by this process.

    Args:
        experiment: The experiment.
        infra: Layout of the processes; `infra.verl.ray_address` null starts a local Ray.
        model_path: Directory or hub id that every node can read.
        version: Name of the weights.

    Returns:
        The engine; its `close` ends everything that was started.

    Raises:
        ConfigError: verl cannot run this combination, or is not installed.
    """
    check_family(infra, model_path)
    cpu = is_cpu(infra)
    variables = configure(cpu=cpu)
    import ray
    from omegaconf import OmegaConf

    from vagen.engines.verl.config import verl_config
    from vagen.engines.verl.engine import VerlEngine
    from vagen.engines.verl.groups import WorkerGroups

    config = verl_config(
        experiment,
        infra,
        str(model_path),
        cpu=cpu,
        environment=variables,
        frame_pixels=largest_frame(experiment, infra, model_path),
    )
    connected_here = connect(config)
    _check_gpus(infra)
    _await_earlier_engine()
    OmegaConf.resolve(config)
    return VerlEngine(
        experiment,
        model_path,
        groups=WorkerGroups(experiment, infra, config),
        version=version,
        environments=infra.environments,
        on_close=ray.shutdown if connected_here else lambda: None,
    )


def check_family(infra: InfraConfig, model_path: str | Path) -> None:
    """Rejects models that verl's networks or servers would compute otherwise.

    Raises:
        ConfigError: Such a model; the message says what can train it.
    """
    config = load_config(model_path)
    family = family_of(config, model_path)
    reason = NOT_COMPUTED.get(family.model_type)
    if getattr(config.get_text_config(), "final_logit_softcapping", None):
        reason = "capped logits would let banned tokens through"
    if reason is not None:
        raise ConfigError(
            f"infra.engine: verl cannot train {family.model_type} ({reason}); set it to local"
        )
    if family.reader and not family.patch_grids and infra.verl.rollout == "vllm":
        raise ConfigError(
            f"infra.verl.rollout: with verl, vLLM reads the images of Qwen-VL alone, not those of "
            f"{family.model_type}; set it to torch, or infra.engine to local"
        )


def largest_frame(
    experiment: ExperimentConfig, infra: InfraConfig, model_path: str | Path
) -> int | None:
    """Pixels of the largest frame of the environments, scaled as the model reads it.

    None if vLLM does not play or there are no frames. All frames of an environment have one size.
    """
    processor = load_processor(model_path)
    shown = [spec for spec in experiment.envs.values() if spec.env_config["render_mode"] != "text"]
    if infra.verl.rollout != "vllm" or not processor.has_vision or not shown:
        return None
    sizes = []
    for spec in shown:
        env = environments_of(infra.environments).open(spec.env_name, spec.env_config)
        observation, _ = env.reset(seed=0)
        env.close()
        for frame in observation["images"]:
            height, width, _ = frame.shape
            sizes.append(math.prod(processor.read_size((width, height))))
    return max(sizes, default=None)


def connect(config: Any) -> bool:
    """Joins or starts the configured Ray cluster, with verl's environment variables.

    Returns:
        True if this process was not connected before.
    """
    import ray
    from omegaconf import OmegaConf
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    if ray.is_initialized():
        return False
    options = config.ray_kwargs.get("ray_init", {})
    environment = OmegaConf.merge(get_ppo_ray_runtime_env(config), options.get("runtime_env", {}))
    merged = OmegaConf.create({**options, "runtime_env": environment})
    ray.init(**OmegaConf.to_container(merged))
    return True


def _check_gpus(infra: InfraConfig) -> None:
    """Checks the number of GPUs; Ray would never stop waiting for missing ones.

    Raises:
        ConfigError: The cluster has fewer GPUs than the run asks for.
    """
    import ray

    found, wanted = int(ray.cluster_resources().get("GPU", 0)), gpus(infra)
    if found < wanted:
        raise ConfigError(
            f"the Ray cluster has {found} GPUs, and the run asks for {wanted}: {ranks(infra)} that "
            f"train (infra.verl.nnodes × n_gpus_per_node) and {infra.verl.rollout_gpus} of the "
            "rollout servers alone (infra.verl.rollout_gpus)"
        )


def _await_earlier_engine() -> None:
    """Waits until the actors of an earlier engine are gone from the cluster.

    Ray ends the actors of a dead process after a delay, and their names are taken until then. A
    cluster holds one engine at a time.

    Raises:
        EngineLost: They stay: another engine is running.
    """
    from ray.util import list_named_actors

    from vagen.engines.verl.errors import EngineLost
    from vagen.engines.verl.groups import RANK_PREFIX, RECEIVER_PREFIX

    prefixes = (RANK_PREFIX, RECEIVER_PREFIX, *(f"{name}_server" for name in ROLLOUTS.values()))
    deadline = time.monotonic() + EARLIER_ENGINE_SECONDS
    while True:
        names = {actor["name"] for actor in list_named_actors(all_namespaces=True)}
        left = sorted(n for n in names if n.startswith(prefixes))
        if not left:
            return
        if time.monotonic() > deadline:
            raise EngineLost(
                f"the Ray cluster holds another engine ({left[0]}): a cluster serves one run at a "
                "time; end that run's session, or give this run a cluster of its own"
            )
        time.sleep(0.5)
