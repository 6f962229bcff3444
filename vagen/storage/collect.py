"""Finds garbage in an S3 store: remains of dead writers, and expired runs."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from vagen.storage.manifest import MANIFEST
from vagen.storage.s3 import DATA, LOCK, S3Store, data_id

RUN = "config/experiment.yaml"
"""Folders that identify a run in the store."""


@dataclass(slots=True)
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
    """Names in the store; manifests come first, so that remains do not look complete."""
    upload: dict[str, Any] | None = None
    """A multipart upload to abort."""


def find_garbage(store: S3Store, older_than: timedelta, expire: timedelta | None) -> list[Removal]:
    """Lists what `remove` may delete.

    These are files without a manifest, locks and unfinished uploads that have not changed for
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
    expired = {} if expire is None else _runs(entries, now - expire)
    found = list(expired.values())
    found += [
        removal
        for removal in _remains(store, entries)
        if removal.newest < now - older_than and not removal.what.startswith(tuple(expired))
    ]
    for name, entry in store.uploads():
        if entry["Initiated"] < now - older_than:
            why = "an upload that was begun and not ended"
            found.append(Removal(name, why, entry["Initiated"], upload=entry))
    return found


def remove(store: S3Store, removal: Removal) -> None:
    """Removes objects or aborts an upload.

    Raises:
        StorageError: The store cannot be written.
    """
    if removal.upload is not None:
        store.abort_upload(removal.upload)
        return
    manifests = [name for name in removal.objects if name.endswith(f"/{MANIFEST}")]
    store.delete_objects(manifests)
    store.delete_objects([name for name in removal.objects if name not in set(manifests)])


def _remains(store: S3Store, entries: dict[str, dict[str, Any]]) -> Iterator[Removal]:
    """Files without a manifest, by folder; and locks."""
    folders: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for name in entries:
        for kind in (DATA, LOCK):
            key, mark, rest = name.partition(f"/{kind}/")
            if mark:
                folders[key, kind, rest.partition("/")[0]].append(name)
    manifests: dict[str, str | None] = {}
    for (key, kind, inner), names in folders.items():
        if kind == LOCK:
            yield _removal(f"{key}/{LOCK}/{inner}", "a lock whose holder died", names, entries)
            continue
        if key not in manifests:
            content = store.read_file(f"{key}/{MANIFEST}")
            manifests[key] = data_id(content) if content is not None else None
        if manifests[key] is None:
            yield _removal(f"{key}/{DATA}/{inner}", "files without a manifest", names, entries)
        elif manifests[key] != inner:
            why = "files of another attempt than the manifest's"
            yield _removal(f"{key}/{DATA}/{inner}", why, names, entries)


def _runs(entries: dict[str, dict[str, Any]], before: datetime) -> dict[str, Removal]:
    """Runs that have not changed since a time, by the prefix of their objects."""
    found = {}
    for root in [name.removesuffix(RUN) for name in entries if name.endswith(f"/{RUN}")]:
        names = [name for name in entries if name.startswith(root)]
        removal = _removal(root.rstrip("/"), "a run that is too old", names, entries)
        if removal.newest < before:
            found[root] = removal
    return found


def _removal(what: str, why: str, names: list[str], entries: dict[str, dict[str, Any]]) -> Removal:
    return Removal(
        what,
        why,
        newest=max(entries[name]["LastModified"] for name in names),
        size=sum(entries[name]["Size"] for name in names),
        objects=sorted(names),
    )
