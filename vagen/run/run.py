"""A run: one folder with its configuration and the results of its steps."""

import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vagen import progress, steps
from vagen.config import ExperimentConfig, InfraConfig, config_digest, dump_yaml
from vagen.config.base import ConfigError
from vagen.config.infra import SCRATCH
from vagen.config.load import load_experiment, load_infra
from vagen.run import layout
from vagen.run.history import iteration_metrics
from vagen.run.length import extensions, lengthened
from vagen.run.mirror import Mirror, restore
from vagen.run.pruning import is_pruned
from vagen.run.reading import check_folder, committed, read_results, result
from vagen.run.uris import is_uri
from vagen.storage import MANIFEST, CorruptArtifact, read_manifest, sole_writer, storage_errors

if TYPE_CHECKING:
    from vagen.engines.base import Engine
    from vagen.tracking.background import BackgroundTracker


@dataclass(frozen=True, slots=True)
class Stop:
    """The reason and iteration of an early stop.

    >>> Stop(iteration=41, reason="validation success was below 0.2 3 times in a row").iteration
    41
    """

    iteration: int
    """The last iteration."""
    reason: str


@dataclass(frozen=True, slots=True)
class NextRollout:
    """The next iteration's episodes, played while the networks learn (`one_step_off`)."""

    iteration: int
    episodes: Future[Any]
    """A future `vagen.stages.rollout.PlayedEpisodes`."""


@dataclass(eq=False)
class Run:
    """Configuration and folders of one run (see `vagen.run.layout`), and state that its process
    keeps between steps.
    """

    path: Path
    experiment: ExperimentConfig
    infra: InfraConfig
    engine: "Engine | None" = field(default=None, repr=False)
    """Networks in memory; None until a step needs them (`vagen.stages.weights`)."""
    next_rollout: NextRollout | None = field(default=None, repr=False)
    pending_checkpoint: Future[None] | None = field(default=None, repr=False)
    """A checkpoint that is being written (`vagen.stages.checkpoints`)."""
    tracker: "BackgroundTracker | None" = field(default=None, repr=False)
    """The open MLflow run; None until a step uses it (`vagen.stages.tracking`)."""
    drawn: tuple[Any, ...] = field(default=(), repr=False)
    """State of the last drawn learning curves (`vagen.stages.finalize`)."""
    mirror: Mirror | None = field(init=False, repr=False)
    """The run's copy in `infra.store`; None without a store."""

    def __post_init__(self) -> None:
        self._began = self.experiment
        self.experiment = lengthened(self._began, self.path)
        self.mirror = Mirror(self.path, self.infra) if self.infra.store else None

    @classmethod
    def create(
        cls, experiment: ExperimentConfig, infra: InfraConfig, name: str | None = None
    ) -> "Run":
        """Creates the folder `<output_dir>/<name>-<time>` with the configuration; links `latest`.

        Uploads the configuration to `infra.store`.

        Raises:
            StorageError: The output folder or the store cannot be written.
            ConfigError: A run of this name exists.
        """
        label = name or f"{experiment.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        path = infra.runs_folder / label
        with storage_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                path.mkdir()
            except FileExistsError:
                raise ConfigError(
                    f"{path} exists: choose another --name, or continue it with "
                    f"`vagen resume {label}`"
                ) from None
            (path / layout.EXPERIMENT).parent.mkdir()
            (path / layout.EXPERIMENT).write_text(dump_yaml(experiment))
            (path / layout.INFRA).write_text(dump_yaml(infra))
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
        """Opens a run by its folder, or by its URI in a store, which creates a folder.

        Raises:
            ConfigError: There is no run, or its configuration cannot be read.
            StorageError: The store cannot be used.
        """
        path = restore(path) if isinstance(path, str) and is_uri(path) else Path(path).absolute()
        if not (path / layout.EXPERIMENT).exists():
            raise ConfigError(f"{path} is no run: it has no {layout.EXPERIMENT}")
        infra = load_infra(str(path / layout.INFRA), [])
        if path.parent != infra.runs_folder and not (infra.store and os.environ.get(SCRATCH)):
            # The folder may have been moved, or be relative to another working directory.
            infra = infra.model_copy(update={"output_dir": str(path.parent)})
        # It was checked when the run was created, and the check would import torch.
        return cls(path, load_experiment(str(path / layout.EXPERIMENT), check=False), infra)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Makes this process the run's only writer, and reports its progress.

        At the end waits for the checkpoint and calls `release_resources`.

        Raises:
            InUse: Another process is working on the run.
            CorruptArtifact: The experiment is not the run's initial one.
            StorageError: The checkpoint could not be written, and there was no earlier error.
        """
        self.check_config()
        with sole_writer(self.path), progress.reporting(self.events), self.release_resources():
            progress.describe(
                self.experiment.name,
                self.experiment.trainer.total_training_steps,
                done=self.finished_iterations,
            )
            try:
                yield
                self.await_checkpoint()
            finally:
                try:
                    self.await_checkpoint()
                except Exception as error:  # the first error is raised
                    progress.note(str(error))

    @contextmanager
    def release_resources(self) -> Iterator[None]:
        """Ends helper processes and the tracker, once everything is recorded."""
        try:
            yield
        finally:
            for held in (self.engine, self.tracker):
                if held is not None:
                    held.close()
            self.engine = self.next_rollout = self.tracker = None

    def await_checkpoint(self, *, wait: bool = True) -> None:
        """Waits until no checkpoint is being written.

        Args:
            wait: False checks without waiting.

        Raises:
            Exception: It could not be written; raised once.
        """
        future = self.pending_checkpoint
        if future is not None and (wait or future.done()):
            self.pending_checkpoint = None
            future.result()

    @property
    def events(self) -> Path:
        """File of the run's events."""
        return self.path / layout.EVENTS

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return self.path.name

    @property
    def uri(self) -> str:
        """The run's name for other processes: its URI in the store, or its folder."""
        return self.mirror.uri if self.mirror is not None else str(self.path)

    @property
    def config_digest(self) -> str:
        """SHA-256 of the run's initial resolved experiment."""
        return config_digest(self._began if extensions(self.path) else self.experiment)

    def read_length(self) -> int:
        """The training's number of iterations, with extensions (`vagen.run.extension`)."""
        before, self.experiment = self.experiment, lengthened(self._began, self.path)
        total = self.experiment.trainer.total_training_steps
        if total > before.trainer.total_training_steps:
            progress.note(f"the training was extended to {total} iterations")
            progress.describe(self.experiment.name, total, done=self.finished_iterations)
        return total

    def check_config(self) -> None:
        """Checks that the experiment is the one that the run's levels were drawn for.

        Raises:
            CorruptArtifact: Its file was changed.
        """
        levels = committed(self.levels)
        began = levels.payload.get("config_digest") if levels is not None else None
        if began not in (None, self.config_digest):
            raise CorruptArtifact(
                f"{self.path / layout.EXPERIMENT} was changed after the run began: it has digest "
                f"{self.config_digest}, the run began with {began}; restore it, or begin another "
                "run with it"
            )

    @property
    def levels(self) -> Path:
        """Folder of the `build` step."""
        return self.path / layout.LEVELS

    @property
    def warm_start(self) -> Path:
        """Folder of the `warm_start` step."""
        return self.path / steps.WARM_START

    @property
    def registration(self) -> Path:
        """Folder of the `register` step."""
        return self.path / layout.REGISTRATION

    def folder(
        self, stage: str, *, iteration: int | None = None, name: str = "", **_: Any
    ) -> Path | None:
        """Folder of a stage; None for `finalize`, which has none."""
        if stage in steps.ITERATION:
            assert iteration is not None
            return self.step(iteration, stage)
        if stage in steps.EVALUATIONS:
            return self.evaluation(name)
        return {
            "build": self.levels,
            "warm_start": self.warm_start,
            "register": self.registration,
        }.get(stage)

    def finished(
        self, stage: str, *, iteration: int | None = None, name: str = "", **_: Any
    ) -> dict[str, Any] | None:
        """The result of a committed stage; None if it is not done.

        A pipeline has all iterations from the start. Those after an early stop return the result of
        the last update.
        """
        folder = self.folder(stage, iteration=iteration, name=name)
        if folder is not None and self.is_current(folder):
            return self.located(result(folder))
        if iteration is not None and is_pruned(self.step(iteration, "update")):
            return self.located({**result(self.step(iteration, "update")), "metrics": {}})
        if stage == "evaluate":
            iteration = layout.validated_iteration(name)
        stop = self.stop if iteration is not None else None
        if iteration is None or stop is None or iteration <= stop.iteration:
            return None
        return self.located({**result(self.step(stop.iteration, "update")), "metrics": {}})

    def is_current(self, folder: Path) -> bool:
        """Whether a folder is committed and not from before an extension."""
        manifest = committed(folder)
        if manifest is None or folder not in (self.evaluation(layout.FINAL), self.registration):
            return manifest is not None
        if self.finished_iterations <= self.last_iteration:
            return False
        measured = manifest.payload.get("iteration")
        return measured is None or measured == self.final_iteration + 1

    def located(self, produced: dict[str, Any]) -> dict[str, Any]:
        """A stage's result with the URI for other processes: in the store, if there is one."""
        if self.mirror is None:
            return produced
        return {**produced, "uri": self.mirror.uri_of(produced["uri"])}

    def step(self, iteration: int, name: str) -> Path:
        """Folder of an iteration's step."""
        return self.path / layout.iteration(iteration) / name

    def checkpoint(self, iteration: int) -> Path:
        """Folder of the weights and optimizer after an iteration's update."""
        return self.path / layout.checkpoint(iteration)

    def evaluation(self, name: str) -> Path:
        """Folder of an evaluation."""
        return self.path / layout.EVALUATIONS / name

    @property
    def finished_iterations(self) -> int:
        """Number of iterations with a committed update, from the first without a gap."""
        iteration = 0
        while (self.step(iteration, "update") / MANIFEST).exists():
            iteration += 1
        return iteration

    @property
    def stop(self) -> Stop | None:
        """The early stop of the training; None if there was none."""
        last = self.finished_iterations - 1
        if last < 0:
            return None
        reason = read_manifest(self.step(last, "update")).payload.get("stopped")
        return Stop(last, reason) if reason else None

    @property
    def last_iteration(self) -> int:
        """Index of the last iteration, also after an early stop."""
        stop = self.stop
        return stop.iteration if stop else self.experiment.trainer.total_training_steps - 1

    def validations(self) -> dict[int, float]:
        """Success on the validation levels by iteration, in order."""
        folders = {
            number: self.evaluation(layout.validation(number + 1))
            for number in range(self.finished_iterations)
        }
        return {
            number: read_results(self.fetch(folder))["success"]
            for number, folder in folders.items()
            if committed(folder)
        }

    @property
    def best_iteration(self) -> int | None:
        """Index of the iteration with the best validation.

        None if `trainer.select` does not use it, or there is no validation yet.
        """
        if self.experiment.trainer.select == "last" or not (found := self.validations()):
            return None
        return max(found, key=lambda number: (found[number], number))

    @property
    def final_iteration(self) -> int:
        """Index of the iteration whose policy is the result of the training."""
        best = self.best_iteration
        return self.last_iteration if best is None else best

    def fetch(self, folder: Path, part: str = "") -> Path:
        """The committed folder with verified contents, downloaded from the store if needed.

        Args:
            folder: A folder of the run; returned unchanged if not committed.
            part: A folder or file in it, to fetch only that.

        Raises:
            StorageError: The contents are not available.
            CorruptArtifact: A file was changed after the commit; the message says what to do.
        """
        if self.mirror is not None:
            self.mirror.fetch(folder, part)
        check_folder(folder, part, in_store=self.mirror is not None)
        return folder

    def iteration_metrics(self) -> list[dict[str, float]]:
        """Metrics of every finished iteration; see `vagen.run.history`."""
        return iteration_metrics(self.path, self.finished_iterations)

    def initial_model(self) -> str:
        """Path or hub id of the initial policy of reinforcement learning.

        Raises:
            StorageError: The warm start is not committed.
        """
        manifest = read_manifest(self.fetch(self.warm_start))
        return manifest.payload["model_path"] or str(self.warm_start / layout.POLICY)

    def newest_policy(self) -> str:
        """Model directory of the training's result, or of the newest policy if it is not finished.

        Before the first checkpoint this is the result of the warm start.

        Raises:
            ConfigError: There is neither yet.
        """
        checkpoints = sorted((self.path / layout.CHECKPOINTS).glob("[0-9]*/manifest.json"))
        if self.finished_iterations > self.last_iteration:
            checkpoints = [self.checkpoint(self.final_iteration) / MANIFEST]
        if checkpoints:
            return str(self.fetch(checkpoints[-1].parent, layout.POLICY) / layout.POLICY)
        if committed(self.warm_start) is None:
            raise ConfigError(f"{self.path} has no policy yet: its warm start is not finished")
        return self.initial_model()


def _point_latest(path: Path) -> None:
    """Links `latest` next to a run's folder to it."""
    partial = path.parent / f".{layout.LATEST}-{path.name}"
    partial.unlink(missing_ok=True)
    partial.symlink_to(path.name, target_is_directory=True)
    partial.replace(path.parent / layout.LATEST)
