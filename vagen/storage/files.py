"""Files that appear whole or not at all, and files with a JSON value per line."""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vagen.storage.errors import storage_errors


@contextmanager
def write_whole(path: Path) -> Iterator[Path]:
    """Yields a path beside `path` to write to; it takes its name when the block ends well.

    Raises:
        StorageError: The folder is full, read-only or missing.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.partial")
    try:
        with storage_errors(path.parent):
            yield partial
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_lines(path: Path) -> list[Any]:
    """The values of a file of JSON lines, without lines truncated by a crash.

    Returns:
        The values, oldest first; an empty list if there is no file.
    """
    values = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            values.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return values


def append_line(path: Path, line: str) -> None:
    """Appends a line with a single write, so that lines of several processes do not mix."""
    with path.open("ab", buffering=0) as file:
        file.write(line.encode() + b"\n")
