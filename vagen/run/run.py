"""A run in a process that works on it: what is kept in memory between steps."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vagen import progress
from vagen.config import ExperimentConfig, InfraConfig, dump_yaml
from vagen.config.base import ConfigError
from vagen.config.infra import SCRATCH
from vagen.experiment.load import load_experiment, load_infra
from vagen.run import layout
from vagen.run.folder import RunFolder
from vagen.run.mirror import restore
from vagen.storage import append_line, sole_writer, storage_errors

if TYPE_CHECKING:
    from vagen.engines.base import Engine
    from vagen.tracking.background import BackgroundTracker

LENGTH = "trainer.total_training_steps"


@dataclass(frozen=True, slots=True)
class NextRollout:
    """The next iteration's episodes, played while the networks learn (`one_step_off`)."""

    iteration: int
    episodes: Future[Any]
    """A future `vagen.stages.rollout.PlayedEpisodes`."""


@dataclass(eq=False)
class Run(RunFolder):
    """A run's folder, and the state that its process keeps between steps."""

    engine: "Engine | None" = field(default=None, repr=False)
    """Networks in memory; None until a step needs them (`vagen.stages.weights`)."""
    next_rollout: NextRollout | None = field(default=None, repr=False)
    pending_checkpoint: Future[None] | None = field(default=None, repr=False)
    """A checkpoint that is being written (`vagen.stages.weights`)."""
    tracker: "BackgroundTracker | None" = field(default=None, repr=False)
    """The open MLflow run; None until a step uses it (`vagen.stages.tracking`)."""
    drawn: tuple[Any, ...] = field(default=(), repr=False)
    """State of the last drawn learning curves (`vagen.stages.finalize`)."""

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
        partial = path.parent / f".{layout.LATEST}-{path.name}"
        partial.unlink(missing_ok=True)
        partial.symlink_to(path.name, target_is_directory=True)
        partial.replace(path.parent / layout.LATEST)
        return run

    @classmethod
    def open(cls, path: Path | str) -> "Run":
        """Opens a run by its folder, or by its URI in a store, which creates a folder.

        Raises:
            ConfigError: There is no run, or its configuration cannot be read.
            StorageError: The store cannot be used.
        """
        path = (
            restore(path)
            if isinstance(path, str) and layout.is_uri(path)
            else Path(path).absolute()
        )
        if not (path / layout.EXPERIMENT).exists():
            raise ConfigError(f"{path} is no run: it has no {layout.EXPERIMENT}")
        infra = load_infra(str(path / layout.INFRA), [])
        if path.parent != infra.runs_folder and not (infra.store and os.environ.get(SCRATCH)):
            # The folder may have been moved, or be relative to another working directory.
            infra = infra.model_copy(update={"output_dir": str(path.parent)})
        # It was checked when the run was created, and the check would import torch.
        return cls(path, load_experiment(str(path / layout.EXPERIMENT), check=False), infra)

    def extend(self, steps: int) -> None:
        """Extends a training, even a finished or running one, to `steps` iterations.

        The original experiment stays in `config/experiment.yaml`, and its digest identifies the
        run. Each extension is a line of `config/extensions.jsonl`, which a running process reads
        before every iteration.

        Raises:
            ConfigError: It already has as many, or cannot be extended.
            StorageError: The folder cannot be written.
        """
        now, stop = self.read_length(), self.stop
        if steps <= now:
            raise ConfigError(f"{LENGTH} is {now} already: it can only be made larger, not {steps}")
        if stop is not None:
            raise ConfigError(
                f"the training ended after iteration {stop.iteration + 1}: {stop.reason}; begin "
                "another run with other `trainer.early_stop`"
            )
        if self.experiment.rollout_manager.over_sampling_batch_size is not None:
            raise ConfigError(
                f"{LENGTH} decides which levels `rollout_manager.over_sampling_batch_size` begins "
                "early: begin another run with it"
            )
        line = json.dumps({"from": now, "to": steps, "done": self.finished_iterations})
        with storage_errors(self.path):
            append_line(self.path / layout.EXTENSIONS, line)
        self.read_length()

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
