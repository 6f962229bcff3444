"""What the judge's language model has answered in the step under way, kept in the run's store.

The cache is on the disk of a step's pod, which goes with the pod. The answers of a step that is
not committed yet are in the run's folder as well, as lines of a file that the store has a copy of:
the next attempt at the step, wherever it is made, does not pay for them again.
"""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from vagen.judge.cache import AnswerCache
from vagen.run import layout
from vagen.run.mirror import Mirror

_EVERY = 20.0
"""Seconds between two copies."""


class AnswerJournal:
    """The answers of one step of a run that is in a store."""

    def __init__(self, run_dir: Path, mirror: Mirror) -> None:
        self._path = run_dir / layout.JUDGE_ANSWERS
        self._mirror = mirror
        self._lines: list[str] = []
        self._saved = time.monotonic()

    def attach(self, cache: AnswerCache) -> None:
        """Gives the cache what an attempt before this one was answered, and notes what comes."""
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                # A line that was cut by a crash is an answer less.
                with suppress(json.JSONDecodeError, ValueError, TypeError):
                    key, value = json.loads(line)
                    cache.put(key, value)
        cache.on_put = self._note

    def save_if_due(self) -> None:
        """Copies what came since the last time, now and then.

        Raises:
            StorageError: The store cannot be used, or a newer attempt took the run over.
        """
        if self._lines and time.monotonic() - self._saved > _EVERY:
            self.save()

    def save(self) -> None:
        """Copies what came since the last time.

        Raises:
            StorageError: As `save_if_due`.
        """
        with self._path.open("a") as file:
            file.writelines(self._lines)
        self._lines.clear()
        self._mirror.push_files()
        self._saved = time.monotonic()

    def clear(self) -> None:
        """The step is committed: its verdicts are in the batch."""
        self._path.unlink(missing_ok=True)

    def _note(self, key: str, value: Any) -> None:
        self._lines.append(json.dumps([key, value]) + "\n")
