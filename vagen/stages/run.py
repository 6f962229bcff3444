"""A run: one folder with its configuration and everything its steps wrote."""

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vagen.config import (
    ExperimentConfig,
    InfraConfig,
    config_digest,
    dump_yaml,
    load_experiment,
    load_infra,
)
from vagen.config.base import ConfigError
from vagen.stages.mirror import Mirror, restore, scratch_of
from vagen.stages.progress import read_events
from vagen.stages.routing import is_uri
from vagen.storage import Manifest, read_manifest, storage_errors

if TYPE_CHECKING:
    from vagen.engines.base import Engine
    from vagen.stages.ahead import Ahead

KEEP_CHECKPOINTS = 2
"""Latest checkpoints kept; older ones are deleted."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Where and why a training ended early."""

    iteration: int
    """The last iteration."""
    reason: str


@dataclass(eq=False)
class Run:
    """Configuration and folders of one run.

    Layout: `config/`, `levels/`, `warm_start/`, `iterations/0007/rollout/` (and `judge`,
    `advantage`, `update`), `checkpoints/0007/`, `evaluations/<name>/`, `registration/`,
    `summary.json`, `attempt.json` (see `vagen.storage.fence`).
    """

    path: Path
    experiment: ExperimentConfig
    infra: InfraConfig
    engine: "Engine | None" = field(default=None, repr=False)
    """What is resident: see `vagen.stages.resident`."""
    ahead: "Ahead | None" = field(default=None, repr=False)
    """Episodes of the next iteration, if they are being played already."""
    tracker: Any = field(default=None, repr=False)
    """The open MLflow run, if any."""
    mirror: Mirror | None = field(init=False, repr=False)
    """The run in `infra.store`, if there is one."""

    def __post_init__(self) -> None:
        self.mirror = Mirror(self.path, self.infra) if self.infra.store else None

    @classmethod
    def create(
        cls, experiment: ExperimentConfig, infra: InfraConfig, name: str | None = None
    ) -> "Run":
        """Makes the folder `<output_dir>/<name>-<time>` with the configuration; `latest` names it.

        With `infra.store` the configuration is in the store afterwards.

        Raises:
            StorageError: The output folder or the store cannot be written.
            ConfigError: A run of this name exists.
        """
        label = name or f"{experiment.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        path = scratch_of(infra) / label
        with storage_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                path.mkdir()
            except FileExistsError:
                raise ConfigError(
                    f"{path} exists: choose another --name, or continue it with "
                    f"`vagen resume {label}`"
                ) from None
            (path / "config").mkdir()
            (path / "config" / "experiment.yaml").write_text(dump_yaml(experiment))
            (path / "config" / "infra.yaml").write_text(dump_yaml(infra))
        run = cls(path, experiment, infra)
        if run.mirror is not None:
            try:
                run.mirror.create()
            except ValueError:
                shutil.rmtree(path)
                raise
        _point_latest(path)
        return run

    @classmethod
    def open(cls, path: Path | str) -> "Run":
        """Opens a run by its folder, or by its URI in a store, for which a folder is made.

        Raises:
            ConfigError: There is no run, or its configuration is not readable.
            StorageError: The store cannot be used.
        """
        path = restore(path) if isinstance(path, str) and is_uri(path) else Path(path).absolute()
        experiment = path / "config" / "experiment.yaml"
        if not experiment.exists():
            raise ConfigError(f"{path} is no run: it has no config/experiment.yaml")
        return cls(
            path,
            load_experiment(str(experiment), []),
            load_infra(str(path / "config" / "infra.yaml"), []),
        )

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return self.path.name

    @property
    def config_digest(self) -> str:
        """SHA-256 of the resolved experiment."""
        return config_digest(self.experiment)

    @property
    def levels(self) -> Path:
        """Folder of the `build` step."""
        return self.path / "levels"

    @property
    def warm_start(self) -> Path:
        """Folder of the `warm_start` step."""
        return self.path / "warm_start"

    @property
    def registration(self) -> Path:
        """Folder of the `register` step."""
        return self.path / "registration"

    @property
    def last_iteration(self) -> int:
        """Number of the last iteration: of the one that ended the training early, if one did."""
        stop = stopped_at(self.path)
        return stop.iteration if stop else self.experiment.trainer.total_training_steps - 1

    def step(self, iteration: int, name: str) -> Path:
        """Folder of a step of an iteration."""
        return self.path / "iterations" / f"{iteration:04d}" / name

    def checkpoint(self, iteration: int) -> Path:
        """Weights and optimizer after an iteration's update."""
        return self.path / "checkpoints" / f"{iteration:04d}"

    def evaluation(self, name: str) -> Path:
        """Folder of an evaluation."""
        return self.path / "evaluations" / name

    def fetch(self, folder: Path, part: str = "") -> Path:
        """The committed folder with its contents, which may still be in the store only.

        Args:
            folder: Of the run.
            part: A folder in it, if no more is needed.

        Raises:
            StorageError: They cannot be had.
        """
        return self.mirror.fetch(folder, part) if self.mirror is not None else folder

    def iteration_metrics(self) -> list[dict[str, float]]:
        """Metrics of every finished iteration, each with its `iteration` and the steps' seconds."""
        seconds: dict[int, dict[str, float]] = {}
        for event in read_events(self.path):
            if event["event"] == "stage_finished" and event["iteration"] is not None:
                times = seconds.setdefault(event["iteration"], {})
                # A step that was found committed took no time; the first one did the work.
                times.setdefault(f"timing_s/{event['stage']}", event["seconds"])
        history = []
        for iteration in range(self.last_iteration + 1):
            manifest = committed(self.step(iteration, "update"))
            if manifest is None:
                break
            history.append(
                {
                    "iteration": iteration,
                    **manifest.payload["history"],
                    **seconds.get(iteration, {}),
                }
            )
        return history

    def initial_model(self) -> str:
        """Path or hub id of the policy that reinforcement learning starts from.

        Raises:
            StorageError: The warm start is not committed.
        """
        manifest = read_manifest(self.fetch(self.warm_start))
        return manifest.payload["model_path"] or str(self.warm_start / "policy")

    def newest_policy(self) -> str:
        """Model directory of the newest checkpoint, else what the warm start made or was given.

        Raises:
            ConfigError: There is neither yet.
        """
        checkpoints = sorted((self.path / "checkpoints").glob("[0-9]*/manifest.json"))
        if checkpoints:
            return str(self.fetch(checkpoints[-1].parent, "policy") / "policy")
        if committed(self.warm_start) is None:
            raise ConfigError(f"{self.path} has no policy yet: its warm start is not finished")
        return self.initial_model()


def _point_latest(path: Path) -> None:
    """Makes `latest` beside a run's folder a link to it."""
    partial = path.parent / f".latest-{path.name}"
    partial.unlink(missing_ok=True)
    partial.symlink_to(path.name, target_is_directory=True)
    partial.replace(path.parent / "latest")


def stopped_at(run_dir: Path) -> Stop | None:
    """Where the training ended early, as its last update says; None if it did not."""
    folders = (run_dir / "iterations").glob("[0-9]*")
    for folder in sorted(folders, key=lambda folder: int(folder.name), reverse=True):
        manifest = committed(folder / "update")
        if manifest is not None:
            reason = manifest.payload.get("stopped")
            return Stop(int(folder.name), reason) if reason else None
    return None


def committed(folder: Path) -> Manifest | None:
    """The folder's manifest if it is there whole."""
    return read_manifest(folder) if (folder / "manifest.json").exists() else None


def result(folder: Path) -> dict[str, Any]:
    """What a step returns: where its folder is, its digest, its metrics."""
    manifest = read_manifest(folder)
    return {
        "uri": str(folder),
        "sha256": manifest.digest,
        "metrics": manifest.payload.get("metrics", {}),
    }
