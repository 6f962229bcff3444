"""Manages the engine and its weights between steps, and writes checkpoints beside the training.

A checkpoint is copied to host memory and written while the next episodes are played. An update is
committed once its state is copied; its checkpoint follows when everything is written, hashed, and
uploaded to a store if there is one. A process that dies in between leaves an update without saved
weights, which `engine_at` recomputes by repeating updates from the last checkpoint; at least one
checkpoint is always complete. Weights that cannot be recomputed are committed before their update:
the final ones, and those of a rollback.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

from vagen import progress, steps
from vagen.engines.base import Engine
from vagen.engines.learn import learn
from vagen.engines.make import device_of, gpus_of, make_engine
from vagen.rollout.batch import TrajectoryBatch
from vagen.run import layout
from vagen.run.folder import prunable, prune_batches, remove_folder
from vagen.run.run import Run
from vagen.run.spent import ENGINE_STARTED
from vagen.stages.batches import read_batch
from vagen.steps import iteration_of, version_after, version_before
from vagen.storage import (
    MANIFEST,
    FileEntry,
    StorageError,
    StoreAway,
    Superseded,
    commit_directory,
    read_manifest,
    remove_all_stale,
)


def version_played(run: Run, iteration: int) -> str:
    """Version of the policy that plays an iteration: one update behind with `one_step_off`."""
    behind = run.experiment.rollout_manager.one_step_off and iteration > 0
    return version_before(iteration - behind)


def version_learning(run: Run, batch: TrajectoryBatch) -> str:
    """Version of the policy that learns from a batch: the one that played it, or its successor."""
    behind = run.experiment.rollout_manager.one_step_off
    return version_before(batch.iteration) if behind else batch.policy_version


def saved_iterations(run: Run) -> list[int]:
    """Iterations with committed weights, in order; contents may be in the store."""
    found = (run.path / layout.CHECKPOINTS).glob(f"[0-9]*/{MANIFEST}")
    return sorted(int(path.parent.name) for path in found)


def engine_at(run: Run, version: str) -> Engine:
    """The engine with the weights of `version`: the resident one, or loaded from the run's folder.

    Weights that were not saved (`infra.save_freq`) are recomputed by repeating updates since the
    last saved ones, whose batches are kept.

    Args:
        run: The run, which keeps the engine.
        version: `warm_start` or `iteration-0007`.

    Raises:
        StorageError: The iteration's update is not committed, its inputs are missing, or a pending
            checkpoint could not be written.
        CorruptArtifact: A file was changed.
    """
    if run.engine is not None and run.engine.version == version:
        return run.engine
    run.await_checkpoint()
    last = -1 if version == steps.WARM_START else iteration_of(version)
    saved = max((number for number in saved_iterations(run) if number <= last), default=-1)
    engine = _load(run, version_before(saved + 1))
    for iteration in range(saved + 1, last + 1):
        if "rollback" in read_manifest(run.step(iteration, "update")).payload:
            gone = run.checkpoint(iteration)
            raise StorageError(f"{gone} is gone, and what it held was rolled back to, not learnt")
        progress.note(
            f"the weights after iteration {iteration + 1} were not saved: its update is done again"
        )
        batch, _ = read_batch(run, "update", iteration)
        learn(run.experiment, engine, batch.trajectories, batch.images, iteration)
        engine.version = version_after(iteration)
    return engine


def _load(run: Run, version: str) -> Engine:
    """The engine with saved weights."""
    if run.engine is None or version == steps.WARM_START:
        if run.engine is not None:
            run.engine.close()
            run.engine = None
        run.fetch(run.warm_start)
        run.engine = make_engine(
            run.experiment, run.infra, run.initial_model(), version=steps.WARM_START
        )
        _record_machine(run)
    if version != steps.WARM_START:
        checkpoint = run.checkpoint(iteration_of(version))
        run.engine.load(run.fetch(checkpoint), version=version)
    return run.engine


def _record_machine(run: Run) -> None:
    """Records the hardware and software that affect numbers; warns if they changed in the run."""
    import torch

    cpu = device_of(run.infra).type == "cpu"
    machine: dict[str, object] = {
        "device": "cpu" if cpu else torch.cuda.get_device_name(),
        "threads": torch.get_num_threads() if cpu else None,
        "torch": torch.__version__,
    }
    earlier = [e for e in progress.read_events(run.events) if e["event"] == ENGINE_STARTED]
    before = earlier[-1].get("machine", machine) if earlier else machine
    progress.event(ENGINE_STARTED, gpus=gpus_of(run.infra), machine=machine)
    for name, now in machine.items():
        if now != before[name]:
            progress.note(
                f"the run goes on with {name} {now}, it had {before[name]}: its numbers "
                "will not be those of a run that was never stopped"
            )


def prune_checkpoints(run: Run, iteration: int, *, base: str = "") -> None:
    """Deletes unneeded checkpoints, and remains of a killed process, after a new checkpoint.

    Args:
        run: The run.
        iteration: Iteration of the new or next checkpoint, which counts among the kept ones.
        base: Version for rollbacks, whose source is kept too; empty without rollbacks.
    """
    saved = [number for number in saved_iterations(run) if number < iteration]
    kept = {*saved[1 - layout.KEEP_CHECKPOINTS :], run.best_iteration}
    if base not in ("", steps.WARM_START):
        kept |= set([number for number in saved if number <= iteration_of(base)][-1:])
    for folder in (run.path / layout.CHECKPOINTS).glob("[0-9]*"):
        if int(folder.name) < iteration and int(folder.name) not in kept:
            remove_folder(folder)
    remove_all_stale(run.path / layout.CHECKPOINTS)


def prune_iterations(run: Run) -> None:
    """Deletes batches of iterations older than `trainer.keep_iterations`."""
    keep = run.experiment.trainer.keep_iterations
    if keep is not None:
        saved, best = saved_iterations(run), run.best_iteration
        prune_batches(run.path, prunable(run.finished_iterations, saved, keep, best=best))


def begin_checkpoint(run: Run, engine: Engine, iteration: int) -> None:
    """Copies the engine's state and commits it in the background: `run.await_checkpoint`.

    Args:
        run: The run, without another pending checkpoint.
        engine: May learn or play right after the call.
        iteration: The iteration whose update produced the weights.

    Raises:
        StorageError: The folder cannot be written.
    """
    begun = time.monotonic()
    folder = run.checkpoint(iteration)
    known: dict[str, FileEntry] = {}
    with ExitStack() as entered:
        if run.mirror is not None:
            entered.enter_context(run.mirror.put_after(folder))
        partial = entered.enter_context(
            commit_directory(folder, kind="checkpoint", replace=True, known=known)
        )
        finish = engine.begin_save(partial)
        opened = entered.pop_all()
    blocked = time.monotonic() - begun

    def write() -> None:
        try:
            with opened:
                known.update(finish())
        except (StoreAway, Superseded):
            raise
        except StorageError as error:
            raise StorageError(
                f"the checkpoint after iteration {iteration + 1} was not written: {error}; "
                "resumed, the run goes on from the one before and repeats the updates since"
            ) from error
        progress.event(
            "checkpoint_written",
            iteration=iteration,
            seconds=time.monotonic() - begun,
            seconds_blocked=blocked,
            bytes=sum(entry.size for entry in known.values()),
        )

    run.pending_checkpoint = _in_background(write)


def _in_background(work: Callable[[], None]) -> Future[None]:
    pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future
