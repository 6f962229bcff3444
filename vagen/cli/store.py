"""`vagen store`: lists, checks, copies and cleans up a store."""

import re
import tempfile
from argparse import Namespace
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

from vagen.cli.common import find_run
from vagen.cli.main import UsageError
from vagen.experiment.load import load_infra
from vagen.run import layout
from vagen.run.folder import BATCHES, prunable, prune_batches
from vagen.run.layout import is_uri
from vagen.storage import MANIFEST, StorageError, Store, open_store, parse_manifest, sole_writer

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def store(options: Namespace) -> None:
    """Executes an action."""
    _ACTIONS[options.action](options)


def _list(options: Namespace) -> None:
    """Prints the keys below a URI, each with its digest and size."""
    where = _open(options.uri, options)
    for key in where.list():
        manifest = parse_manifest(where.manifest(key), f"{key}/{MANIFEST}")
        size = sum(entry.size for entry in manifest.files.values())
        print(f"{manifest.digest[:12]}  {_size(size):>10}  {manifest.kind:<12}  {key}")


def _put(options: Namespace) -> None:
    """Uploads a committed folder."""
    if options.path is None:
        raise UsageError("`vagen store put` needs the URI and the folder to put there")
    root, key = _split(options.uri)
    print(_open(root, options).put_directory(Path(options.path), key))


def _fetch(options: Namespace) -> None:
    """Downloads a committed folder."""
    if options.path is None:
        raise UsageError("`vagen store fetch` needs the URI and a folder that does not exist yet")
    root, key = _split(options.uri)
    print(_open(root, options).fetch_directory(key, Path(options.path)))


def _verify(options: Namespace) -> None:
    """Reads everything below a URI and checks it against its manifest.

    Raises:
        StorageError: Something is not as it should be; every other folder has been checked too.
    """
    where = _open(options.uri, options)
    keys, wrong = where.list(), 0
    for key in keys:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                where.fetch_directory(key, Path(scratch) / "folder")
            except StorageError as error:
                wrong += 1
                print(f"{key}: {error}")
    if wrong:
        raise StorageError(f"{wrong} of {len(keys)} folders in {options.uri} are damaged")
    print(f"{len(keys)} folders, all as their manifests say")


def _collect(options: Namespace) -> None:
    """Removes files that no manifest names and, if asked, old runs."""
    where = _open(options.uri, options)
    older_than = read_age(options.older_than, "--older-than")
    expire = read_age(options.expire, "--expire") if options.expire else None
    if not options.uri.startswith("s3://"):
        raise UsageError(
            "only s3:// stores gather remains; one in a folder removes them when the key is next "
            "written, and its runs are folders that can be deleted"
        )
    from vagen.storage.collect import find_garbage, remove
    from vagen.storage.s3 import S3Store

    assert isinstance(where, S3Store)
    found = find_garbage(where, older_than, expire)
    now = datetime.now(UTC)
    for removal in found:
        if not options.dry_run:
            remove(where, removal)
        age = _age(now - removal.newest)
        print(f"{removal.what}: {removal.why}, {age} old, {_size(removal.size)}")
    done = "would be removed" if options.dry_run else "removed"
    print(f"{len(found)} {done}, {_size(sum(removal.size for removal in found))}")


def _prune(options: Namespace) -> None:
    """Removes the batches of a run's old iterations, on this machine or in a store.

    Raises:
        InUse: Another process works on the run.
    """
    keep = 2 if options.keep is None else options.keep
    if keep < 1:
        raise UsageError(f"--keep is {keep}; the newest iteration stays, so that 1 is the least")
    if is_uri(options.uri):
        _prune_stored(options, keep)
        return
    from vagen.run.run import Run

    run = Run.open(find_run(options.uri))
    saved = [int(p.parent.name) for p in run.path.glob(f"{layout.CHECKPOINTS}/[0-9]*/{MANIFEST}")]
    numbers = prunable(run.finished_iterations, saved, keep, best=run.best_iteration)
    with sole_writer(run.path) if not options.dry_run else nullcontext():
        freed = prune_batches(run.path, numbers, dry_run=options.dry_run)
    _say_pruned(len(numbers), freed, options)


def _prune_stored(options: Namespace, keep: int) -> None:
    root, name = _split(options.uri)
    where = _open(root, options)
    keys = [key.split("/")[1:] for key in where.list(name)]
    saved = [int(parts[1]) for parts in keys if parts[0] == layout.CHECKPOINTS]
    done = sum(parts[0] == layout.ITERATIONS and parts[2] == "update" for parts in keys)
    gone = [
        "/".join((name, *parts))
        for parts in keys
        if parts[0] == layout.ITERATIONS
        and parts[2] in BATCHES
        and int(parts[1]) in prunable(done, saved, keep)
    ]
    freed = 0
    for key in gone:
        manifest = parse_manifest(where.manifest(key), f"{key}/{MANIFEST}")
        freed += sum(entry.size for entry in manifest.files.values())
        if not options.dry_run:
            where.delete(key)
    _say_pruned(len({key.split("/")[2] for key in gone}), freed, options)


def _say_pruned(count: int, freed: int, options: Namespace) -> None:
    done = "would be removed" if options.dry_run else "removed"
    print(f"episodes of {count} iterations {done}, {_size(freed)}")


_ACTIONS = {
    "ls": _list,
    "put": _put,
    "fetch": _fetch,
    "verify": _verify,
    "gc": _collect,
    "prune": _prune,
}


def read_age(text: str, option: str) -> timedelta:
    """A time such as `30m`, `12h`, `7d` or `2w`.

    Raises:
        UsageError: It is none.
    """
    found = re.fullmatch(r"(\d+)([mhdw])", text)
    if found is None:
        raise UsageError(f"{option} is {text!r}; write a number and m, h, d or w, e.g. 7d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def _open(uri: str, options: Namespace) -> Store:
    return open_store(uri, load_infra(options.infra).s3)


def _split(uri: str) -> tuple[str, str]:
    """The store and the key in it that a URI of a folder stands for."""
    root, _, key = uri.rstrip("/").rpartition("/")
    return root, key


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _age(age: timedelta) -> str:
    hours = age.total_seconds() / 3600
    return f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} hours"
