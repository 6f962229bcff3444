"""The engine of a run, kept between steps; what is on disk decides what it must hold."""

import shutil
from pathlib import Path

from vagen.stages.run import KEEP_CHECKPOINTS, Run
from vagen.storage import verify_directory

WARM_START = "warm_start"


def version_before(iteration: int) -> str:
    """Name of the policy that an iteration's rollout uses."""
    return WARM_START if iteration == 0 else version_after(iteration - 1)


def version_after(iteration: int) -> str:
    """Name of the policy that an iteration's update leaves."""
    return f"iteration-{iteration:04d}"


def engine_at(run: Run, version: str):
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
    import torch

    from vagen.engines.local.engine import LocalEngine

    configure_torch(run)
    if run.engine is None or version == WARM_START:
        run.engine = None
        verify_directory(run.warm_start)
        run.engine = LocalEngine(
            run.experiment,
            run.initial_model(),
            device=device_of(run),
            dtype=getattr(torch, run.infra.dtype),
            version=WARM_START,
        )
    if version != WARM_START:
        checkpoint = run.checkpoint(int(version.rpartition("-")[2]))
        verify_directory(checkpoint)
        run.engine.load(checkpoint, version=version)
    return run.engine


def configure_torch(run: Run) -> None:
    """Threads and determinism of this process; on a CPU torch's kernels are deterministic."""
    import torch

    if run.infra.threads is not None:
        torch.set_num_threads(run.infra.threads)
    if device_of(run).type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)


def device_of(run: Run):
    """The device that `infra.device` asks for.

    Raises:
        ConfigError: It is not there.
    """
    import torch

    from vagen.config.base import ConfigError

    wanted = run.infra.device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"infra.device is {wanted}, but no GPU is visible: use cpu or auto")
    return torch.device(wanted)


def prune_checkpoints(run: Run, latest: int, *, keep: str = "") -> None:
    """Deletes checkpoints older than the latest few, but that of the version `keep`."""
    for folder in sorted((run.path / "checkpoints").glob("[0-9]*")):
        number = int(folder.name)
        if number <= latest - KEEP_CHECKPOINTS and version_after(number) != keep:
            _remove(folder)


def _remove(folder: Path) -> None:
    """Deletes a folder such that what is left of it never looks whole."""
    (folder / "manifest.json").unlink(missing_ok=True)
    shutil.rmtree(folder)
