"""G9: how fast a checkpoint of the distributed engine is copied, written, hashed and read."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import (
    Meter,
    Setup,
    add_columns,
    difference,
    rows_of,
    written_episodes,
)
from benchmarks.gpu.engines import one_rank
from vagen.storage import FileEntry, commit_directory, verify_directory
from vagen.storage.manifest import scan_files


def check(setup: Setup) -> dict[str, Any]:
    """Passes if what was read says what was written."""
    config = setup.experiment()
    trajectories, images = written_episodes(setup, config)
    rows = rows_of(trajectories)
    folder = setup.scratch / "checkpoint"
    meter = Meter(setup.device)
    with one_rank(config, setup.infra()) as engine:
        values = engine.values(rows, images)[0]
        add_columns(rows, engine.logprobs(rows, images), values)
        engine.update(rows, images, seed=0)  # the optimizers have moments only now
        said = engine.logprobs(rows, images)
        for _ in range(setup.repeats):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            with meter.phase("copy"):  # the training waits for no more than this
                finish = engine.begin_save(folder)
            with meter.phase("write and hash"):
                finish()
                _flush(folder)
            with meter.phase("hash alone"):
                files = scan_files(folder)
            _forget(folder)
            with meter.phase("read"):
                engine.load(folder, version="written")
        shutil.rmtree(folder)
        known: dict[str, FileEntry] = {}
        with (
            meter.phase("save as a run does"),
            commit_directory(folder, known=known) as partial,
        ):
            known |= engine.begin_save(partial)()
        _forget(folder)
        with meter.phase("load as a run does"):
            verify_directory(folder)
            engine.load(folder, version="written")
        again = engine.logprobs(rows, images)
    shutil.rmtree(folder)
    size = sum(entry.size for entry in files.values())
    apart = difference(again, said, rows)
    return {
        "passed": apart["max"] == 0.0 and all(np.isfinite(x).all() for x in again),
        "gb": size / 1e9,
        "files": len(files),
        "gb_per_second": {name: size / 1e9 / meter.median(name) for name in meter.seconds},
        "phases": meter.report(),
        "difference_after_reading": apart,
    }


def _flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def _forget(folder: Path) -> None:
    """Lets the system drop the files from its memory, so that they are read from the disk."""
    _flush(folder)
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)
