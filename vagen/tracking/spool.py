"""A queue on disk of records that the server has not accepted yet."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

Record = dict[str, Any]
PENDING = "tracking_pending.jsonl"
"""File of the queue in a run's folder."""


class Spool:
    """A queue of JSON records in a file, which survives the process.

    If the file cannot be written, the queue stays in memory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[Record] = _read(path)

    def __bool__(self) -> bool:
        return bool(self.records)

    def append(self, record: Record) -> None:
        """Adds a record at the end."""
        self.records.append(record)
        with suppress(OSError), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def pop(self) -> None:
        """Removes the first record; `save` makes that permanent."""
        self.records.pop(0)

    def save(self) -> None:
        """Writes the remaining records to the file, or deletes it if there are none."""
        if not self.records:
            self.path.unlink(missing_ok=True)
            return
        partial = self.path.with_name(f"{self.path.name}.partial")
        with suppress(OSError):
            partial.write_text("".join(json.dumps(record) + "\n" for record in self.records))
            os.replace(partial, self.path)


def _read(path: Path) -> list[Record]:
    """The records of a file, without a last line truncated by a kill."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records
