"""Finds garbage in an S3 store: remains of dead writers, and expired runs."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from vagen.storage.manifest import MANIFEST
from vagen.storage.s3 import DATA, S3Store, data_id

RUN = "config/experiment.yaml"
"""File that identifies the folder of a run in the store."""


@dataclass(frozen=True, slots=True)
class Removal:
    """Objects to remove, and why."""

    what: str
    """Key or name in the store."""
    why: str
    newest: datetime
    """Last modification by the server's clock."""
    size: int = 0
    """Bytes, if known."""
    objects: list[str] = field(default_factory=list)
    """Names in the store."""
    upload: dict[str, Any] | None = None
    """A multipart upload to abort."""


def find_garbage(store: S3Store, older_than: timedelta, expire: timedelta | None) -> list[Removal]:
    """Lists what `remove` may delete.

    These are files without a manifest and unfinished uploads that have not changed for
    `older_than`; and with `expire`, whole runs that have not changed for that time.

    Args:
        store: The whole store.
        older_than: Minimum age of remains, as younger ones may belong to a running writer.
        expire: Age of runs to remove; None keeps all.

    Raises:
        StorageError: The store cannot be read.
    """
    now = datetime.now(UTC)
    entries = dict(store.objects())

    def removal(what: str, why: str, names: Iterable[str]) -> Removal:
        found = {name: entries[name] for name in names}
        newest = max(entry["LastModified"] for entry in found.values())
        size = sum(entry["Size"] for entry in found.values())
        return Removal(what, why, newest, size, sorted(found))

    expired: dict[str, Removal] = {}
    if expire is not None:
        for run in [name.removesuffix(RUN) for name in entries if name.endswith(f"/{RUN}")]:
            names = [name for name in entries if name.startswith(run)]
            found = removal(run.rstrip("/"), "a run that is too old", names)
            if found.newest < now - expire:
                expired[run] = found
    remains = [
        removal(folder, why, names)
        for folder, why, names in _remains(store, entries)
        if not folder.startswith(tuple(expired))
    ]
    remains += [
        Removal(name, "an upload that was begun and not ended", entry["Initiated"], upload=entry)
        for name, entry in store.uploads()
    ]
    return [*expired.values(), *(found for found in remains if found.newest < now - older_than)]


def remove(store: S3Store, removal: Removal) -> None:
    """Removes objects or aborts an upload.

    Raises:
        StorageError: The store cannot be written.
    """
    if removal.upload is not None:
        store.abort_upload(removal.upload)
    # Manifests first, so that remains do not look complete.
    manifests = {name for name in removal.objects if name.endswith(f"/{MANIFEST}")}
    store.delete_objects(manifests)
    store.delete_objects(name for name in removal.objects if name not in manifests)


def _remains(store: S3Store, names: Iterable[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Files that no manifest names, by folder: the folder, the reason and the files."""
    folders: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in names:
        key, mark, rest = name.partition(f"/{DATA}/")
        if mark:
            folders[key, rest.partition("/")[0]].append(name)
    contents = {key: store.read_file(f"{key}/{MANIFEST}") for key, _ in folders}
    for (key, inner), files in folders.items():
        content = contents[key]
        if content is None:
            yield f"{key}/{DATA}/{inner}", "files without a manifest", files
        elif data_id(content) != inner:
            why = "files of another attempt than the manifest's"
            yield f"{key}/{DATA}/{inner}", why, files
