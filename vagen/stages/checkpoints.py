"""Checkpoints: a copy in host memory, written while the next episodes are played.

An update is committed as soon as what it saves is copied; its checkpoint follows when all is
written, hashed, and (of a run in a store) put there. A process that dies between the two leaves an
update whose weights were not saved, which `vagen.stages.weights.engine_at` has again by repeating
updates from the last checkpoint: at any time at least one is whole. What cannot be had like that is
committed before its update: the weights that a training ends with, and those that were rolled back
to.
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
    """Copies what the engine holds, and has it committed meanwhile: `run.await_checkpoint`.

    Args:
        run: The run; no other checkpoint of it is being written.
        engine: May learn or play at once.
        iteration: Its update left these weights.

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

    run.checkpoint_to_come = _in_background(write)


def _in_background(work: Callable[[], None]) -> Future[None]:
    pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future
