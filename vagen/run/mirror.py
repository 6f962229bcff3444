"""The copy of a run in a store, with every committed folder under the same name.

Every stage starts by making its process the run's newest attempt in the store. It ends by uploading
what it committed, in order of dependency: a checkpoint before the update that refers to it. So a
run can be resumed wherever the store is reachable: first come the manifests of all committed
folders, then contents on demand. A folder with only a manifest, a *shell*, shows that a step is
done, with its results.

The store also decides who writes, by `attempt.json` next to the run's folders: it must name this
process's attempt before anything of a stage appears (`vagen.storage.writer`). A process that finds
another attempt at its next stage takes over the other's results, and moves its own folders that are
not in the store to `superseded/`.
"""

import shutil
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from vagen import progress, steps
from vagen.config import InfraConfig
from vagen.config.base import ConfigError
from vagen.config.infra import SCRATCH
from vagen.config.yaml_io import parse_yaml
from vagen.experiment.load import load_infra
from vagen.run import layout
from vagen.run.layout import split_uri
from vagen.storage import (
    MANIFEST,
    Attempt,
    Store,
    append_line,
    check_newest,
    materialize,
    open_store,
    publish_manifest,
    read_manifest,
    storage_errors,
    write_whole,
)
from vagen.storage.writer import ATTEMPT
from vagen.tracking.extra import WANDB_SENT
from vagen.tracking.tracker import PENDING

CONFIG = (layout.EXPERIMENT.as_posix(), layout.INFRA.as_posix())

_ATTEMPTS = ".attempts"
"""File of a run's folder with its attempts, one per line."""
_EXTENSIONS = layout.EXTENSIONS.as_posix()
_GROWING = (layout.EVENTS, layout.LOG, layout.JUDGE_ANSWERS, _EXTENSIONS)
"""Files made of lines."""
_FILES = (*_GROWING, WANDB_SENT, layout.SUMMARY, layout.CURVES.as_posix())
_TRACKING_FILES = (layout.MLFLOW_RUN, PENDING)
_ORDER = (
    layout.LEVELS,
    steps.WARM_START,
    layout.ITERATIONS,
    layout.CHECKPOINTS,
    layout.EVALUATIONS,
    layout.REGISTRATION,
)
_LINEAGE = (layout.ITERATIONS, layout.CHECKPOINTS)
"""Folders that different attempts must not mix."""
_WORKERS = 8


class Mirror:
    """One run's copy in a store.

    Args:
        path: The run's folder.
        infra: Its `store` has the copy; opened on first use.
    """

    def __init__(self, path: Path, infra: InfraConfig) -> None:
        assert infra.store is not None
        self._path = path
        self._infra = infra
        self._root = infra.store.rstrip("/")
        self._attempt: Attempt | None = None
        self._uploaded: dict[str, bytes] = {}
        """Manifests in the store, by folder of the run."""
        self._other_threads: set[str] = set()
        """Folders that another thread uploads."""
        self._sent: dict[str, tuple[int, int] | None] = {}
        """Size and time of loose files at their last upload; None if deleted."""

    @cached_property
    def _store(self) -> Store:
        return open_store(self._root, self._infra.s3)

    @property
    def uri(self) -> str:
        """The run's URI."""
        return f"{self._root}/{self._path.name}"

    def uri_of(self, place: str) -> str:
        """The URI of a folder of the run; other paths do not change."""
        path = Path(place)
        if not path.is_relative_to(self._path):
            return place
        inner = path.relative_to(self._path).as_posix()
        return self.uri if inner == "." else f"{self.uri}/{inner}"

    def create(self) -> None:
        """Uploads the configuration of a new run.

        Raises:
            ConfigError: The store has a run of this name.
            StorageError: The store cannot be used.
        """
        if self._store.read_file(self._key(CONFIG[0])) is not None:
            raise ConfigError(
                f"{self.uri} exists: choose another --name, or continue it with "
                f"`vagen resume {self.uri}`"
            )
        # The file that identifies a run comes last.
        for name in reversed(CONFIG):
            self._store.write_file(self._key(name), (self._path / name).read_bytes())

    @property
    def is_current(self) -> bool:
        """Whether this process is the newest attempt."""
        return self._attempt is not None and Attempt.parse(self._newest()) == self._attempt

    def begin(self) -> bool:
        """Makes this process the newest attempt, and takes over results of older ones.

        Returns:
            Whether an iteration's folder or a checkpoint now comes from another attempt.

        Raises:
            StorageError: The store cannot be used.
        """
        if self.is_current:
            return False
        is_ours, attempt = self._is_ours(), Attempt()
        # From here on no other attempt adds anything.
        self._store.write_file(self._key(ATTEMPT), attempt.to_json().encode())
        changed = self._pull(is_ours)
        with storage_errors(self._path):
            append_line(self._path / _ATTEMPTS, attempt.name)
        self._attempt = attempt
        self.push()
        return changed

    def pull(self) -> None:
        """Downloads the store's manifests; newer ones replace local ones."""
        self._pull(self._is_ours())

    def find(self, folder: Path | None) -> None:
        """Downloads the manifest of one folder if it is only in the store."""
        if folder is None or (folder / MANIFEST).exists():
            return
        key = self._key(folder.relative_to(self._path).as_posix())
        if self._store.exists(key):
            publish_manifest(folder, self._store.manifest(key))

    def push(self) -> None:
        """Uploads committed folders that are not in the store, then deletes locally pruned ones
        there.

        Raises:
            Superseded: A newer attempt took over.
            StorageError: The store cannot be used. The next stage in this folder uploads the rest.
        """
        for place in self._committed():
            if place not in self._other_threads:
                self._put(place, guard=self._guard)
        for place in [place for place in list(self._uploaded) if place.startswith(_LINEAGE)]:
            if place not in self._other_threads and not (self._path / place).exists():
                self._store.delete(self._key(place), guard=self._guard)
                del self._uploaded[place]
        self.push_files()

    @contextmanager
    def put_after(self, folder: Path) -> Iterator[None]:
        """Uploads a folder at the end of the block, in the block's thread.

        `push` skips it until then, so that no other thread waits for it.

        Raises:
            Superseded: A newer attempt took over.
            StorageError: The store cannot be used; a later `push` uploads the folder.
        """
        place = folder.relative_to(self._path).as_posix()
        self._other_threads.add(place)
        try:
            yield
            self._put(place, guard=self._guard)
        finally:
            self._other_threads.discard(place)

    def push_evaluation(self, folder: Path) -> None:
        """Uploads an evaluation without becoming the newest attempt; no other attempt writes it."""
        self._put(folder.relative_to(self._path).as_posix(), guard=None)

    def push_files(self) -> None:
        """Uploads loose files that changed: events, logs, summary.

        Raises:
            Superseded: A newer attempt took over.
        """
        if self._attempt is None:
            return
        due = [name for name in self._files() if self._sent.get(name) != self._stamp(name)]
        if due:
            self._guard()
        for name in due:
            stamp = self._stamp(name)
            content = (self._path / name).read_bytes() if stamp else b""
            self._store.write_file(self._key(name), content)
            self._sent[name] = stamp

    def fetch(self, folder: Path, part: str = "") -> Path:
        """Returns a folder after downloading missing contents.

        Args:
            folder: A folder of the run; others are returned unchanged.
            part: A folder in it, to fetch only that.

        Raises:
            StorageError: The contents are not available.
            CorruptArtifact: They differ from the manifest.
        """
        if folder.is_relative_to(self._path) and (folder / MANIFEST).exists():
            manifest = read_manifest(folder)
            if not all((folder / name).is_file() for name in manifest.part(part)):
                key = self._key(folder.relative_to(self._path).as_posix())
                with progress.bar(f"{folder.name} from the store", 1) as advance:
                    materialize(self._store, key, folder, part)
                    advance(1)
        return folder

    def _pull(self, keep_local: bool) -> bool:
        """Like `pull`, but keeps local folders if the newest attempt is `keep_local`.

        Returns:
            Whether an iteration's folder or a checkpoint was replaced.
        """
        start = len(self._path.name) + 1
        keys = self._store.list(self._path.name)
        keys = [key for key in keys if key[start:].partition("/")[0] in _ORDER]
        with ThreadPoolExecutor(_WORKERS) as pool:
            contents = pool.map(self._store.manifest, keys)
            self._uploaded = {
                key[start:]: content for key, content in zip(keys, contents, strict=True)
            }
        changed = False
        local = set(self._committed())
        for place, content in self._uploaded.items():
            folder = self._path / place
            if place in local and (keep_local or (folder / MANIFEST).read_bytes() == content):
                continue
            publish_manifest(folder, content)
            changed = changed or place.startswith(_LINEAGE)
        if not keep_local:
            changed = self._keep_superseded(local - self._uploaded.keys()) or changed
        self._pull_files(replace=not keep_local)
        return changed

    def _put(self, place: str, guard: Callable[[], None] | None) -> None:
        content = (self._path / place / MANIFEST).read_bytes()
        if self._uploaded.get(place) == content:
            return
        # The newest attempt may replace results of older ones.
        self._store.put_directory(
            self._path / place, self._key(place), replace=guard is not None, guard=guard
        )
        self._uploaded[place] = content

    def _committed(self) -> list[str]:
        """All committed folders, in order of dependency."""
        found = [
            path.parent.relative_to(self._path)
            for pattern in ("*", "checkpoints/*", "iterations/*/*", "evaluations/*")
            for path in self._path.glob(f"{pattern}/{MANIFEST}")
        ]
        known = [
            place
            for place in found
            if place.parts[0] in _ORDER and not any(part.startswith(".") for part in place.parts)
        ]
        return [place.as_posix() for place in sorted(known, key=_rank)]

    def _is_ours(self) -> bool:
        """Whether the newest attempt is of this folder, or there is none."""
        newest = Attempt.parse(self._newest())
        path = self._path / _ATTEMPTS
        return newest is None or (path.exists() and newest.name in path.read_text().split())

    def _newest(self) -> bytes | None:
        return self._store.read_file(self._key(ATTEMPT))

    def _guard(self) -> None:
        check_newest(self._newest(), self._attempt, self.uri)

    def _keep_superseded(self, places: set[str]) -> bool:
        """Moves folders of a superseded training to `superseded/`."""
        superseded = sorted(place for place in places if place.startswith(_LINEAGE))
        kept = self._path / layout.SUPERSEDED / uuid.uuid4().hex[:8]
        for place in superseded:
            (kept / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(self._path / place, kept / place)
        if superseded:
            progress.note(
                f"another attempt went on with {self.uri}: what only this folder had is in {kept}"
            )
        return bool(superseded)

    def _pull_files(self, *, replace: bool) -> None:
        for name in self._files():
            path = self._path / name
            if path.exists() and not replace:
                continue
            content = self._store.read_file(self._key(name))
            if not content:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if name in _GROWING and path.exists():
                # This process has already written events.
                path.write_bytes(content + _missing_lines(path.read_bytes(), content))
            else:
                path.write_bytes(content)
                self._sent[name] = self._stamp(name)

    def _files(self) -> tuple[str, ...]:
        """Loose files, without the default MLflow database and references to it."""
        return _FILES + (_TRACKING_FILES if self._infra.mlflow_tracking_uri else ())

    def _stamp(self, name: str) -> tuple[int, int] | None:
        path = self._path / name
        if not path.exists():
            return None
        stat = path.stat()
        return stat.st_size, stat.st_mtime_ns

    def _key(self, place: str) -> str:
        return f"{self._path.name}/{place}"


def restore(uri: str) -> Path:
    """Creates a folder for a run in a store, with its configuration, if there is none yet.

    The store's options come from the environment (`AWS_ENDPOINT_URL_S3`, ...), since the run's own
    are in the store.

    Args:
        uri: `<store>/<name of the run>`.

    Raises:
        ConfigError: There is no such run, or the folder has another.
        StorageError: The store cannot be used.
    """
    root, name = split_uri(uri)
    store = open_store(root)
    contents = {file: store.read_file(f"{name}/{file}") for file in CONFIG}
    experiment, infra = contents.values()
    if experiment is None or infra is None:
        raise ConfigError(f"there is no run {uri}: it has no {CONFIG[0]}")
    config = load_infra(parse_yaml(infra.decode(), f"{uri}/{CONFIG[1]}"))
    if (config.store or "").rstrip("/") != root:
        raise ConfigError(
            f"the run {uri} says that it is in the store {config.store}: correct infra.store in "
            f"its {CONFIG[1]}"
        )
    path = config.runs_folder / name
    present = path / CONFIG[0]
    if present.exists() and present.read_bytes() != experiment:
        raise ConfigError(
            f"{path} is another run than {uri}: rename it, or set {SCRATCH} to another folder"
        )
    with storage_errors(path):
        for file, content in contents.items():
            (path / file).parent.mkdir(parents=True, exist_ok=True)
            if content is not None and not (path / file).exists():
                with write_whole(path / file) as partial:
                    partial.write_bytes(content)
    return path


def _missing_lines(content: bytes, other: bytes) -> bytes:
    """Lines of a file that another one lacks."""
    known = set(other.splitlines())
    return b"".join(line for line in content.splitlines(True) if line.rstrip(b"\n") not in known)


def _rank(place: Path) -> tuple[Any, ...]:
    """Sort key of folders: an iteration's checkpoint, if any, comes right before its update."""
    first, *rest = place.parts
    if first == layout.CHECKPOINTS:
        return (_ORDER.index(layout.ITERATIONS), rest[0], len(steps.ITERATION) - 1.5)
    if first == layout.ITERATIONS:
        order = [*steps.ITERATION, rest[1]]  # others come last
        return (_ORDER.index(first), rest[0], order.index(rest[1]))
    return (_ORDER.index(first), *rest)
