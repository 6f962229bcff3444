"""`vagen store`: what is in a store, checked, copied, tidied up."""

import re
import tempfile
from argparse import Namespace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from vagen.cli.main import UsageError
from vagen.config.load import load_infra
from vagen.storage import MANIFEST, StorageError, Store, open_store, parse_manifest

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def store(options: Namespace) -> None:
    """Executes one of its actions."""
    _ACTIONS[options.action](options)


def _list(options: Namespace) -> None:
    """Prints the keys below a URI, each with its digest and size."""
    where = _open(options.uri, options)
    for key in where.list():
        manifest = parse_manifest(where.manifest(key), f"{key}/{MANIFEST}")
        size = sum(entry.size for entry in manifest.files.values())
        print(f"{manifest.digest[:12]}  {_size(size):>10}  {manifest.kind:<12}  {key}")


def _put(options: Namespace) -> None:
    """Puts a committed folder to a URI."""
    if options.path is None:
        raise UsageError("`vagen store put` needs the URI and the folder to put there")
    root, key = _split(options.uri)
    print(_open(root, options).put_directory(Path(options.path), key))


def _fetch(options: Namespace) -> None:
    """Brings a committed folder from a URI."""
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
    """Removes what no manifest names and, if asked, runs that are too old."""
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


_ACTIONS = {"ls": _list, "put": _put, "fetch": _fetch, "verify": _verify, "gc": _collect}


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
