"""Asynchronous checkpoints: copied to host memory, written while the next episodes are played.

An update is committed once its state is copied; its checkpoint follows when everything is written,
hashed, and uploaded to a store if there is one. A process that dies in between leaves an update
without saved weights, which `vagen.stages.weights.engine_at` recomputes by repeating updates from
the last checkpoint; at least one checkpoint is always complete. Weights that cannot be recomputed
are committed before their update: the final ones, and those of a rollback.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

from vagen import progress
from vagen.engines.base import Engine
from vagen.run.run import Run
from vagen.storage import FileEntry, StorageError, StoreAway, Superseded, commit_directory


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
