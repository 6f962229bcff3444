"""Cache of a language model's answers by content, on disk, shared by runs.

One SQLite file in WAL mode, for any number of processes on one machine. Every answer is committed
at once, so a killed process loses none. Keys are SHA-256, values are JSON; neither contains the
judged text or credentials of the endpoint.
"""

import hashlib
import json
import sqlite3
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FILE = "answers.sqlite"
_VERSION = 1
_WAIT = 30.0
"""Timeout in seconds for another process's write."""
_LOOK_EVERY = 256
"""Number of writes of this process between size checks."""
_DROPPED = 0.1
"""Share of the answers, the oldest, to delete when the file is full."""
_MIB = 1 << 20
_SELECT = "SELECT value FROM answers WHERE key = ?"
_DELETE = "DELETE FROM answers WHERE key = ?"
_INSERT = "INSERT OR IGNORE INTO answers (key, value, made) VALUES (?, ?, ?)"


class CacheError(ValueError):
    """The cache cannot be used; the message says where it is and what helps."""


def content_key(**parts: Any) -> str:
    """SHA-256 of named JSON-serialisable parts in any order; 64 hex digits."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def normalized(text: str) -> str:
    """Normalises a text; texts with equal results share an answer.

    Unifies compatible characters (NFKC), removes control and format characters and collapses
    spaces. Lower- cases, except for texts of several lines, since case has a meaning in grids.
    """
    text = unicodedata.normalize("NFKC", text)
    text = "".join(c for c in text if c in "\n\t" or unicodedata.category(c)[0] != "C")
    lines = [line for raw in text.splitlines() if (line := " ".join(raw.split()))]
    return "\n".join(lines) if len(lines) > 1 else "".join(lines).lower()


class AnswerCache:
    """Answers by key in one file of bounded size; the oldest are deleted first."""

    def __init__(self, folder: Path, *, max_mib: int = 512) -> None:
        """Opens or creates the cache.

        Args:
            folder: Folder on a local disk: SQLite's locks do not work over a network.
            max_mib: Maximum size in MiB.

        Raises:
            CacheError: The folder cannot be written, or the file is not a cache.
        """
        self.path = folder / FILE
        self._most = max_mib * _MIB
        self._writes = 0
        self.on_put: Callable[[str, Any], None] | None = None
        """Called with each stored answer."""
        with self._errors():
            folder.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self.path, timeout=_WAIT, isolation_level=None)
            self._prepare()

    def get(self, key: str) -> Any | None:
        """The answer stored under `key`, or None; deletes one that is not JSON.

        Raises:
            CacheError: The file cannot be read.
        """
        with self._errors():
            found = self._database.execute(_SELECT, (key,)).fetchone()
        if found is None:
            return None
        try:
            return json.loads(found[0])
        except json.JSONDecodeError:
            self.drop(key)
            return None

    def put(self, key: str, value: Any) -> None:
        """Stores an answer on disk; keeps the first of equal keys.

        Raises:
            CacheError: The file cannot be written.
        """
        row = (key, json.dumps(value, separators=(",", ":")), time.time())
        with self._errors():
            self._database.execute(_INSERT, row)
            self._writes += 1
            while self._writes % _LOOK_EVERY == 0 and self._size() > self._most:
                self._database.execute(
                    "DELETE FROM answers WHERE number <= (SELECT min(number) + "
                    "(max(number) - min(number) + 1) * ? FROM answers)",
                    (_DROPPED,),
                )
        if self.on_put is not None:
            self.on_put(key, value)

    def drop(self, key: str) -> None:
        """Deletes the answer stored under `key`.

        Raises:
            CacheError: The file cannot be written.
        """
        with self._errors():
            self._database.execute(_DELETE, (key,))

    def __len__(self) -> int:
        return self._database.execute("SELECT count(*) FROM answers").fetchone()[0]

    def close(self) -> None:
        """Closes the file."""
        self._database.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise CacheError(
                f"{self.path} cannot be used as the judge's cache ({error}): remove it, or choose "
                "another folder with `infra.judge_cache`"
            ) from None

    def _prepare(self) -> None:
        self._use_wal()
        self._database.execute("PRAGMA synchronous = NORMAL")
        version = self._database.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"it has version {version}, not {_VERSION}")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS answers "
            "(number INTEGER PRIMARY KEY, key TEXT UNIQUE, value TEXT, made REAL)"
        )
        self._database.execute(f"PRAGMA user_version = {_VERSION}")

    def _use_wal(self) -> None:
        """Enables WAL where the file system supports it, so that readers and writers do not block.

        SQLite does not wait for a lock in this statement, and the processes of a run open the file
        at the same time.
        """
        end = time.monotonic() + _WAIT
        while True:
            try:
                self._database.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def _size(self) -> int:
        """Bytes in use; pages of deleted answers are reused."""
        pages, free, size = (
            self._database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size
