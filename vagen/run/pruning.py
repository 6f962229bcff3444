"""Batches of old iterations that nothing needs any more."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from vagen.run import layout
from vagen.storage import MANIFEST

BATCHES = layout.ITERATION_STAGES[:-1]
"""Steps of an iteration that hold its episodes; what it measured is in its update."""


def prunable(finished: int, saved: Iterable[int], keep: int, *, best: int | None = None) -> range:
    """Iterations whose batches can go.

    Those since the oldest checkpoint but the best one stay: its updates may have to be done again.

    Args:
        finished: Iterations that are.
        saved: Those with a checkpoint.
        keep: Newest iterations whose batches stay.
        best: The best one, if it is known: nothing is learnt again from its checkpoint unless it is
            the only one.

    >>> prunable(9, [6, 8], keep=2)
    range(0, 7)
    """
    saved = set(saved)
    return range(max(0, min(finished - keep, min(saved - {best} or saved, default=-1) + 1)))


def is_pruned(update: Path) -> bool:
    """Whether an iteration with this folder of its update is finished, and its batches are gone."""
    return (update / MANIFEST).exists() and not any(
        update.with_name(stage).exists() for stage in BATCHES
    )


def prune_batches(path: Path, numbers: Iterable[int], *, dry_run: bool = False) -> int:
    """Deletes the batches of some iterations of a run, unless it is a `dry_run`.

    Returns:
        Bytes that they take.
    """
    folders = [path / layout.iteration(number) / stage for number in numbers for stage in BATCHES]
    freed = _used(folders)
    for folder in folders if not dry_run else ():
        remove_folder(folder)
    return freed


def remove_folder(folder: Path) -> None:
    """Deletes a folder, if it is there, such that what is left of it never looks whole."""
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=not folder.exists())


def _used(folders: Iterable[Path]) -> int:
    """Bytes in folders; a file that several of them share counts once."""
    stats = [path.stat() for folder in folders for path in folder.rglob("*") if path.is_file()]
    return sum({stat.st_ino: stat.st_size for stat in stats}.values())
