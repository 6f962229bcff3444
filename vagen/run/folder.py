"""A run on the disk: its configuration, the committed results of its steps, and what may go."""

import json
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vagen import progress, steps
from vagen.config import ExperimentConfig, InfraConfig, config_digest
from vagen.config.base import ConfigError
from vagen.run import layout
from vagen.run.mirror import Mirror
from vagen.storage import (
    MANIFEST,
    CorruptArtifact,
    Manifest,
    StorageError,
    read_lines,
    read_manifest,
    verify_directory,
)

_SECONDS = "timing_s/"


@dataclass(frozen=True, slots=True)
class Stop:
    """The reason and iteration of an early stop.

    >>> Stop(iteration=41, reason="validation success was below 0.2 3 times in a row").iteration
    41
    """

    iteration: int
    """The last iteration."""
    reason: str


@dataclass(eq=False)
class RunFolder:
    """Configuration and folders of one run (see `vagen.run.layout`)."""

    path: Path
    experiment: ExperimentConfig
    """With the training's current length; see `read_length`."""
    infra: InfraConfig
    mirror: Mirror | None = field(init=False, repr=False)
    """The run's copy in `infra.store`; None without a store."""

    def __post_init__(self) -> None:
        self._began = self.experiment
        self.experiment = lengthened(self._began, self.path)
        self.mirror = Mirror(self.path, self.infra) if self.infra.store else None

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
        """The training's number of iterations, with extensions (`Run.extend`)."""
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

    def is_current(self, folder: Path) -> bool:
        """Whether a folder is committed and not from before an extension."""
        manifest = committed(folder)
        if manifest is None or folder not in (self.evaluation(layout.FINAL), self.registration):
            return manifest is not None
        if self.finished_iterations <= self.last_iteration:
            return False
        measured = manifest.payload.get("iteration")
        return measured is None or measured == self.final_iteration + 1

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

    def located(self, produced: dict[str, Any]) -> dict[str, Any]:
        """A stage's result with the URI for other processes: in the store, if there is one."""
        if self.mirror is None:
            return produced
        return {**produced, "uri": self.mirror.uri_of(produced["uri"])}

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
        """Metrics of every finished iteration, with `iteration`, seconds of the steps and speed of
        the engine.
        """
        from_events = _event_metrics(self.path)
        return [
            {
                "iteration": number,
                **read_manifest(self.step(number, "update")).payload["history"],
                **from_events.get(number, {}),
            }
            for number in range(self.finished_iterations)
        ]

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


def committed(folder: Path) -> Manifest | None:
    """The folder's manifest if the folder is committed."""
    return read_manifest(folder) if (folder / MANIFEST).exists() else None


def read_results(folder: Path) -> dict[str, Any]:
    """Results of an evaluation: success with its interval, and success per level.

    Raises:
        CorruptArtifact: The file was changed.
    """
    verify_directory(folder, layout.RESULTS)
    return json.loads((folder / layout.RESULTS).read_text())


def result(folder: Path) -> dict[str, Any]:
    """Result of a step: URI and digest of its folder, and metrics."""
    manifest = read_manifest(folder)
    return {
        "uri": str(folder),
        "sha256": manifest.digest,
        "metrics": manifest.payload.get("metrics", {}),
    }


def check_folder(folder: Path, part: str = "", *, in_store: bool = False) -> None:
    """Verifies a folder of a run if it is committed.

    Args:
        folder: A folder of the run.
        part: A folder or file in it, to verify only that.
        in_store: Whether a store has a copy.

    Raises:
        CorruptArtifact: A file was changed after the commit; the message says what to do.
    """
    if committed(folder) is None:
        return
    try:
        verify_directory(folder, part)
    except CorruptArtifact as error:
        raise CorruptArtifact(f"{error}; {_instead_of(folder, in_store)}") from None


def _instead_of(folder: Path, in_store: bool) -> str:
    if in_store:
        return "delete the file: it is taken from the store again"
    for older in sorted(folder.parent.glob("[0-9]*"), reverse=True):
        if folder.parent.name == layout.CHECKPOINTS and older.name < folder.name:
            with suppress(StorageError):
                verify_directory(older)
                return (
                    f"the checkpoint before it, {older}, is whole: evaluate "
                    f"{older / layout.POLICY}, or delete {folder} and resume the run from there"
                )
    return "restore it, or delete its folder and resume the run: the step is done again"


def extensions(path: Path) -> list[dict[str, int]]:
    """Extensions of a run, oldest first.

    Returns:
        Dictionaries with the number of iterations before (`from`) and after (`to`), and of those
            that were `done` at the time.
    """
    return read_lines(path / layout.EXTENSIONS)


def lengthened(began: ExperimentConfig, path: Path) -> ExperimentConfig:
    """The run's initial experiment with its current length.

    A schedule over the whole training keeps its original end.
    """
    found = extensions(path)
    if not found:
        return began
    trainer, schedule = began.trainer, began.judge.schedule
    if schedule.type != "constant":
        schedule = schedule.model_copy(
            update={"iterations": schedule.iterations or trainer.total_training_steps}
        )
    return began.model_copy(
        update={
            "trainer": trainer.model_copy(update={"total_training_steps": found[-1]["to"]}),
            "judge": began.judge.model_copy(update={"schedule": schedule}),
        }
    )


def step_timings(path: Path, iteration: int) -> dict[str, float]:
    """Seconds of the steps of an iteration, as metrics."""
    found = _event_metrics(path).get(iteration, {})
    return {name: value for name, value in found.items() if name.startswith(_SECONDS)}


def _event_metrics(path: Path) -> dict[int, dict[str, float]]:
    """Metrics in the events, by iteration."""
    from_events: dict[int, dict[str, float]] = {}
    for event in progress.read_events(path / layout.EVENTS):
        if event["event"] == "stage_finished" and event["iteration"] is not None:
            found = from_events.setdefault(event["iteration"], {})
            found[f"{_SECONDS}{event['stage']}"] = event["seconds"]
            found |= event.get("performance", {})
    return from_events


BATCHES = steps.ITERATION[:-1]
"""Steps of an iteration that store its episodes; its metrics are in its update."""


def prunable(finished: int, saved: Iterable[int], keep: int, *, best: int | None = None) -> range:
    """Iterations whose batches are not needed.

    Updates since the oldest checkpoint (without the best one) may have to be repeated and are kept.

    Args:
        finished: Number of finished iterations.
        saved: Iterations with a checkpoint.
        keep: Number of latest iterations to keep.
        best: The best iteration, if known; training resumes from its checkpoint only if there is no
            other.

    >>> prunable(9, [6, 8], keep=2)
    range(0, 7)
    """
    saved = set(saved)
    return range(max(0, min(finished - keep, min(saved - {best} or saved, default=-1) + 1)))


def is_pruned(update: Path) -> bool:
    """Whether the iteration of this update is finished and its batches are deleted."""
    return (update / MANIFEST).exists() and not any(
        update.with_name(stage).exists() for stage in BATCHES
    )


def prune_batches(path: Path, numbers: Iterable[int], *, dry_run: bool = False) -> int:
    """Deletes batches of some iterations, unless `dry_run` is set.

    Returns:
        Size of the batches in bytes.
    """
    folders = [path / layout.iteration(number) / stage for number in numbers for stage in BATCHES]
    stats = [path.stat() for folder in folders for path in folder.rglob("*") if path.is_file()]
    for folder in folders if not dry_run else ():
        remove_folder(folder)
    return sum({stat.st_ino: stat.st_size for stat in stats}.values())  # shared files once


def remove_folder(folder: Path) -> None:
    """Deletes a folder, if it exists, such that remains never look complete."""
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=not folder.exists())
