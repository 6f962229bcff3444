"""Creates the engine of an infra, and selects its device."""

import os

from vagen.config import ExperimentConfig, InfraConfig
from vagen.engines.base import Engine
from vagen.engines.verl.mapping import gpus
from vagen.service.pool import core_count


def make_engine(
    experiment: ExperimentConfig, infra: InfraConfig, model_path: str, *, version: str
) -> Engine:
    """The engine of `infra.engine`, with the model at `model_path`.

    Raises:
        ModelError: The model cannot be loaded.
        ConfigError: The engine does not support this, or is not installed.
    """
    configure_torch(infra)
    if infra.engine == "verl":
        from vagen.engines.verl.launch import start

        return start(experiment, infra, model_path, version=version)
    import torch

    from vagen.engines.local.engine import LocalEngine

    return LocalEngine(
        experiment,
        model_path,
        device=device_of(infra),
        dtype=getattr(torch, infra.dtype),
        version=version,
        environments=infra.environments,
        helpers=helpers_of(infra),
        options=infra.local,
    )


def configure_torch(infra: InfraConfig) -> None:
    """Sets threads, precision and determinism of this process.

    On a CPU torch's kernels are deterministic, and the local engine uses one thread per process,
    since results depend on the number of threads. On a GPU float32 products are TF32's.
    """
    import torch

    if device_of(infra).type == "cuda":
        torch.set_float32_matmul_precision("high")
        if infra.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(infra.deterministic, warn_only=True)
    elif infra.engine == "local":
        torch.set_num_threads(1)
    if infra.engine == "verl" and infra.threads is not None:
        torch.set_num_threads(infra.threads)


def helpers_of(infra: InfraConfig) -> int:
    """Number of helper processes of the local engine: one per further core, in float32 on a CPU."""
    from vagen.engines.local.helpers import possible_helpers

    if device_of(infra).type != "cpu" or infra.dtype != "float32":
        return 0
    return possible_helpers(infra.threads or core_count())


def device_of(infra: InfraConfig):
    """The device of `infra.device`.

    Raises:
        ConfigError: It does not exist.
    """
    import torch

    from vagen.config.base import ConfigError

    wanted = infra.device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"infra.device is {wanted}, but no GPU is visible: use cpu or auto")
    return torch.device(wanted)


def gpus_of(infra: InfraConfig) -> int:
    """Number of GPUs of an engine; 0 on a CPU."""
    if device_of(infra).type == "cpu":
        return 0
    return gpus(infra) if infra.engine == "verl" else 1
