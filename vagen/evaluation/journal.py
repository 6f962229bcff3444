"""What hosted models have answered, line by line: nothing that is in it is asked for again.

A line is one answer, or one failure of the endpoint, under the environment, the episode (level and
attempt), the turn, the model and the digest of the request. An evaluation that goes on plays its
episodes again from the start: environments are deterministic, so that each request is found here
until the one at which it stopped.
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
    """A journal that cannot be used: says where, and what would be right."""


@dataclass(frozen=True, slots=True)
class Key:
    """Which request it is."""

    environment: str
    """Its name in the evaluation."""
    episode: str
    """Level and attempt: the trajectory's id."""
    turn: int
    model: str
    """The specification."""
    prompt: str
    """SHA-256 of the request."""


def prompt_digest(body: Body) -> str:
    """SHA-256 of all that is asked, images and sampling included."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


class Journal:
    """An append-only file of one evaluation, which one process at a time writes."""

    def __init__(self, path: Path, *, retry_failures: bool = False) -> None:
        """Opens it and reads what is there; a line that a kill has cut is taken off.

        Args:
            path: The file; made if it is not there.
            retry_failures: Forgets the failures in it, so that they are asked for again.

        Raises:
            JournalError: Another process writes it, or a line is none.
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
        """The answer to a request, or how it failed; None if it was never asked."""
        return self._found.get(astuple(key))

    def put(self, key: Key, reply: ChatReply, seconds: float) -> None:
        """Keeps an answer."""
        self._keep(key, reply)
        self._write(key, seconds, reply=reply.to_dict())

    def put_failure(self, key: Key, failure: str, seconds: float) -> None:
        """Keeps that there is none."""
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
