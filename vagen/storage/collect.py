"""What an S3 store can do without: remains of writers that died, and runs that are too old."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from vagen.storage.manifest import MANIFEST
from vagen.storage.s3 import DATA, LOCK, S3Store, data_id

RUN = "config/experiment.yaml"
"""What a folder of the store has that is a run's."""


@dataclass(slots=True)
class Removal:
    """Something to remove, and why."""

    what: str
    """Key or name below the store."""
    why: str
    newest: datetime
    """Time of its last change, by the server's clock."""
    size: int = 0
    """Bytes, where they are known."""
    objects: list[str] = field(default_factory=list)
    """Names below the store; manifests come first, so that nothing looks whole that is not."""
    upload: dict[str, Any] | None = None
    """An upload in parts."""


def find_garbage(store: S3Store, older_than: timedelta, expire: timedelta | None) -> list[Removal]:
    """What `remove` may take away.

    That is: files of no manifest, locks and unfinished uploads that nobody has added to for the
    time of `older_than`; and with `expire`, whole runs in which nothing changed for that time.

    Args:
        store: The store, looked at as a whole.
        older_than: Younger remains may be of a writer at work.
        expire: Age of runs to remove; None removes none.

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
    """Removes it.

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
    """Files by the folder that a manifest would name, where none does; and locks."""
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
    """Runs in which nothing changed since a time, by the prefix of their objects."""
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
