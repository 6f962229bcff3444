"""Reads and verifies committed folders of a run."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from vagen.run import layout
from vagen.storage import (
    MANIFEST,
    CorruptArtifact,
    Manifest,
    StorageError,
    read_manifest,
    verify_directory,
)


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
