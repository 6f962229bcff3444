"""Deletes batches of old iterations."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from vagen import steps
from vagen.run import layout
from vagen.storage import MANIFEST

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
    freed = _used(folders)
    for folder in folders if not dry_run else ():
        remove_folder(folder)
    return freed


def remove_folder(folder: Path) -> None:
    """Deletes a folder, if it exists, such that remains never look complete."""
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=not folder.exists())


def _used(folders: Iterable[Path]) -> int:
    """Bytes in folders; counts shared files once."""
    stats = [path.stat() for folder in folders for path in folder.rglob("*") if path.is_file()]
    return sum({stat.st_ino: stat.st_size for stat in stats}.values())
