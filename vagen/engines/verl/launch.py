"""Brings the distributed engine up in this process: Ray, verl's worker groups and servers."""

from pathlib import Path
from typing import Any

from vagen.config import ExperimentConfig, InfraConfig
from vagen.engines.verl.environment import configure
from vagen.engines.verl.mapping import is_cpu


def start(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    model_path: str | Path,
    *,
    version: str = "initial",
) -> Any:
    """An engine whose networks hold the model at `model_path`; this process drives them.

    Args:
        experiment: What is learnt.
        infra: How it is laid out; `infra.verl.ray_address` null starts a Ray of its own here.
        model_path: Directory or hub id that every node can read.
        version: Name of the weights.

    Returns:
        A `VerlEngine`; its `close` lets everything go.

    Raises:
        ConfigError: verl cannot run this combination, or verl is not installed.
    """
    cpu = is_cpu(infra)
    variables = configure(cpu=cpu)
    import ray
    import transfer_queue
    from omegaconf import OmegaConf

    from vagen.engines.verl.config import verl_config
    from vagen.engines.verl.engine import VerlEngine
    from vagen.engines.verl.trainer import VagenTrainer

    config = verl_config(experiment, infra, str(model_path), cpu=cpu, environment=variables)
    ours = connect(config)
    transfer_queue.init(config.transfer_queue)
    OmegaConf.resolve(config)
    trainer = VagenTrainer(config)
    trainer.init()
    trainer.start_playing()
    return VerlEngine(
        experiment,
        model_path,
        workers=trainer,
        version=version,
        on_close=ray.shutdown if ours else lambda: None,
    )


def connect(config: Any) -> bool:
    """Joins or starts the Ray cluster of a configuration, as verl's `run_ppo` does.

    Returns:
        Whether this process was not connected before.
    """
    import ray
    from omegaconf import OmegaConf
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    if ray.is_initialized():
        return False
    options = config.ray_kwargs.get("ray_init", {})
    environment = get_ppo_ray_runtime_env(config)
    environment.setdefault("env_vars", {})["TRANSFER_QUEUE_ENABLE"] = "1"
    environment = OmegaConf.merge(environment, options.get("runtime_env", {}))
    merged = OmegaConf.create({**options, "runtime_env": environment})
    ray.init(**OmegaConf.to_container(merged))
    return True
