"""Journal of hosted models' answers, which are never requested again.

Each line is an answer, or a failure of the endpoint, with the environment, the episode (level and
attempt), the turn, the model and the digest of the request. A resumed evaluation replays its
episodes: environments are deterministic, so every earlier request is found here.
"""

import fcntl
import hashlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from vagen.clients.chat import Body, ChatReply, TokenUsage


class JournalError(ValueError):
    """A journal that cannot be used; the message says where, and how to fix it."""


@dataclass(frozen=True, slots=True)
class Key:
    """Identifies a request."""

    environment: str
    """Name of the environment in the evaluation."""
    episode: str
    """Level and attempt: the id of the trajectory."""
    turn: int
    model: str
    """The model's specification."""
    prompt: str
    """SHA-256 of the request."""


def prompt_digest(body: Body) -> str:
    """SHA-256 of the whole request, with images and sampling options."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


class Journal:
    """An append-only file of one evaluation, with one writing process."""

    def __init__(self, path: Path, *, retry_failures: bool = False) -> None:
        """Opens and reads the file; removes a last line truncated by a kill.

        Args:
            path: The file, created if missing.
            retry_failures: Whether to drop failures, so that they are retried.

        Raises:
            JournalError: Another process writes it, or a line is invalid.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise JournalError(
                f"{path} is being written: another process makes this evaluation; wait for it, or "
                "choose another folder"
            ) from None
        self._found: dict[tuple[Any, ...], ChatReply | str] = {}
        self.spent: defaultdict[str, TokenUsage] = defaultdict(TokenUsage)
        """Tokens of all answers, by model."""
        for entry in self._read(path):
            key = Key(*(entry[name] for name in Key.__slots__))
            if "failure" in entry:
                if not retry_failures:
                    self._found.setdefault(astuple(key), entry["failure"])
            else:
                self._keep(key, ChatReply.from_dict(entry["reply"]))

    def get(self, key: Key) -> ChatReply | str | None:
        """The answer to a request, or its failure; None if there was no such request."""
        return self._found.get(astuple(key))

    def put(self, key: Key, reply: ChatReply, seconds: float) -> None:
        """Stores an answer."""
        self._keep(key, reply)
        self._write(key, seconds, reply=reply.to_dict())

    def put_failure(self, key: Key, failure: str, seconds: float) -> None:
        """Stores a failure."""
        self._found[astuple(key)] = failure
        self._write(key, seconds, failure=failure)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _keep(self, key: Key, reply: ChatReply) -> None:
        self._found[astuple(key)] = reply
        self.spent[key.model] += reply.tokens

    def _write(self, key: Key, seconds: float, **content: Any) -> None:
        entry = {**asdict(key), "at": round(time.time(), 3), "seconds": round(seconds, 3)}
        self._file.write(json.dumps(entry | content).encode() + b"\n")
        self._file.flush()

    def _read(self, path: Path) -> Iterator[dict[str, Any]]:
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(path, whole)
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                yield json.loads(line)
            except ValueError:
                raise JournalError(
                    f"line {number} of {path} is no JSON: the file was changed; remove the line, "
                    "and what it held is asked for again"
                ) from None
