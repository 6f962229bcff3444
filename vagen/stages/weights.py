"""Which weights a step needs, and the engine that holds them between steps."""

import shutil
from pathlib import Path

from vagen import progress
from vagen.config import ExperimentConfig, InfraConfig
from vagen.engines.base import Engine
from vagen.rollout.batch import TrajectoryBatch
from vagen.run import layout
from vagen.run.run import KEEP_CHECKPOINTS, Run
from vagen.run.spent import ENGINE_STARTED
from vagen.storage import verify_directory


def version_before(iteration: int) -> str:
    """Name of the policy that an iteration begins with."""
    return layout.WARM_START if iteration == 0 else version_after(iteration - 1)


def version_played(run: Run, iteration: int) -> str:
    """Name of the policy that plays an iteration: one update behind if the experiment says so."""
    behind = run.experiment.rollout_manager.one_step_off and iteration > 0
    return version_before(iteration - behind)


def version_learning(run: Run, batch: TrajectoryBatch) -> str:
    """Name of the policy that a batch is learnt by: the one that played it, or its successor."""
    behind = run.experiment.rollout_manager.one_step_off
    return version_before(batch.iteration) if behind else batch.policy_version


def version_after(iteration: int) -> str:
    """Name of the policy that an iteration's update leaves."""
    return f"iteration-{iteration:04d}"


def engine_at(run: Run, version: str) -> Engine:
    """The engine with the weights of `version`: the resident one, or loaded from the run's folder.

    Args:
        run: The run; keeps the engine.
        version: `warm_start` or `iteration-0007`.

    Raises:
        StorageError: The weights are not there: never written, or pruned since.
        CorruptArtifact: A file of theirs was changed.
    """
    if run.engine is not None and run.engine.version == version:
        return run.engine
    if run.engine is None or version == layout.WARM_START:
        if run.engine is not None:
            run.engine.close()
            run.engine = None
        verify_directory(run.fetch(run.warm_start))
        run.engine = make_engine(
            run.experiment, run.infra, run.initial_model(), version=layout.WARM_START
        )
        progress.event(ENGINE_STARTED, gpus=gpus_of(run.infra))
    if version != layout.WARM_START:
        checkpoint = run.checkpoint(int(version.rpartition("-")[2]))
        verify_directory(run.fetch(checkpoint))
        run.engine.load(checkpoint, version=version)
    return run.engine


def make_engine(
    experiment: ExperimentConfig, infra: InfraConfig, model_path: str, *, version: str
) -> Engine:
    """The engine that `infra.engine` asks for, with the model at `model_path`.

    Raises:
        ModelError: The model cannot be loaded.
        ConfigError: The engine cannot run this, or is not installed.
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
    )


def configure_torch(infra: InfraConfig) -> None:
    """Threads and determinism of this process; on a CPU torch's kernels are deterministic."""
    import torch

    if infra.threads is not None:
        torch.set_num_threads(infra.threads)
    if device_of(infra).type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)


def device_of(infra: InfraConfig):
    """The device that `infra.device` asks for.

    Raises:
        ConfigError: It is not there.
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
    """GPUs that an engine holds; 0 on a CPU."""
    if device_of(infra).type == "cpu":
        return 0
    return infra.verl.nnodes * infra.verl.n_gpus_per_node if infra.engine == "verl" else 1


def prune_checkpoints(run: Run, latest: int, *, keep: str = "") -> None:
    """Deletes checkpoints older than the latest few, but that of the version `keep`."""
    for folder in sorted((run.path / layout.CHECKPOINTS).glob("[0-9]*")):
        number = int(folder.name)
        if number <= latest - KEEP_CHECKPOINTS and version_after(number) != keep:
            _remove(folder)


def _remove(folder: Path) -> None:
    """Deletes a folder such that what is left of it never looks whole."""
    (folder / "manifest.json").unlink(missing_ok=True)
    shutil.rmtree(folder)
