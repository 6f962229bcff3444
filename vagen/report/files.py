"""Files that appear whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vagen.storage import storage_errors


@contextmanager
def write_whole(path: Path) -> Iterator[Path]:
    """Yields a path beside `path` to write to; it takes its name when the block ends well.

    Raises:
        StorageError: The folder is full, read-only or missing.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with storage_errors(path.parent):
            yield partial
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
