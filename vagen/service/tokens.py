"""Authorises clients of the service by bearer tokens, from a file that may change."""

import hashlib
import os
import time
from pathlib import Path

ANYONE = "anyone"
"""Name of the client when there are no tokens."""
_POLL_SECONDS = 5.0
_SHORTEST = 16


class TokenError(ValueError):
    """The file of tokens is invalid."""


class ClientTokens:
    """Clients by the digest of their token; comparing digests does not leak a token."""

    def __init__(self, path: str | None):
        """Reads the file.

        Args:
            path: File with lines `client:token`, empty lines and `#` comments; None for no tokens.

        Raises:
            TokenError: There is no such file, or a line is invalid.
        """
        self._path = None if path is None else Path(path)
        self._clients: dict[bytes, str] = {}
        self._version = (0, 0)
        self._looked = 0.0
        if self._path is not None:
            self._read(self._path)

    def client(self, authorization: str | None) -> str | None:
        """The client of an `Authorization` header; None if it is unknown."""
        if self._path is None:
            return ANYONE
        if time.monotonic() - self._looked > _POLL_SECONDS:
            self._refresh(self._path)
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        return self._clients.get(_digest(token.strip()))

    def _refresh(self, path: Path) -> None:
        """Reloads a changed file; keeps the old tokens if it is invalid or missing."""
        try:
            self._read(path)
        except TokenError as error:
            print(f"{error}; the tokens read before stay valid", flush=True)
            self._looked = time.monotonic()

    def _read(self, path: Path) -> None:
        self._looked = time.monotonic()
        try:
            status = os.stat(path)
            version = (status.st_mtime_ns, status.st_ino)
            if version == self._version:
                return
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise TokenError(f"the file of tokens {path} cannot be read: {error}") from None
        clients: dict[bytes, str] = {}
        for number, line in enumerate(lines, 1):
            if not (line := line.strip()) or line.startswith("#"):
                continue
            name, colon, token = line.partition(":")
            if not colon or not name.strip() or len(token.strip()) < _SHORTEST:
                raise TokenError(
                    f"{path}, line {number}: write client:token, with a token of at least "
                    f"{_SHORTEST} characters"
                )
            clients[_digest(token.strip())] = name.strip()
        if not clients:
            raise TokenError(f"{path} holds no token: write a line client:token")
        self._clients, self._version = clients, version


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
