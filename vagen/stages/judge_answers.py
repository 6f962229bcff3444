"""Stores answers of the judge's language model during a step in the run's store.

The cache is on the disk of a step's pod and is deleted with it. Answers of an uncommitted step are
also in a file of the run's folder, which is copied to the store. So the next attempt at the step,
on any node, does not pay for them again.
"""

import json
import time
from pathlib import Path
from typing import Any

from vagen.judge.cache import AnswerCache
from vagen.run import layout
from vagen.run.mirror import Mirror
from vagen.storage import read_lines

_EVERY = 20.0
"""Seconds between copies."""


class AnswerJournal:
    """Answers of one step of a run in a store."""

    def __init__(self, run_dir: Path, mirror: Mirror) -> None:
        self._path = run_dir / layout.JUDGE_ANSWERS
        self._mirror = mirror
        self._lines: list[str] = []
        self._saved = time.monotonic()

    def attach(self, cache: AnswerCache) -> None:
        """Adds earlier attempts' answers to the cache, and records new ones."""
        for key, value in read_lines(self._path):
            cache.put(key, value)
        cache.on_put = self._note

    def save_if_due(self) -> None:
        """Uploads new answers if `INTERVAL` has passed.

        Raises:
            StorageError: The store cannot be used, or a newer attempt took over.
        """
        if self._lines and time.monotonic() - self._saved > _EVERY:
            self.save()

    def save(self) -> None:
        """Uploads new answers.

        Raises:
            StorageError: See `save_if_due`.
        """
        with self._path.open("a") as file:
            file.writelines(self._lines)
        self._lines.clear()
        self._mirror.push_files()
        self._saved = time.monotonic()

    def clear(self) -> None:
        """Deletes the answers of a committed step, whose verdicts are in the batch."""
        self._path.unlink(missing_ok=True)

    def _note(self, key: str, value: Any) -> None:
        self._lines.append(json.dumps([key, value]) + "\n")
