"""The trajectory batch: data passed between steps, in memory and as a directory.

The directory holds `trajectories`, `turns`, `tokens` and `images` as Parquet files, and a manifest
with counts, config digest, policy version and the SHA-256 of each file. A step that changes only
some files shares the others with its input batch.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vagen.rollout.batch_tables import BatchError, check_consistency
from vagen.rollout.types import Trajectory
from vagen.steps import ITERATION
from vagen.storage import FileEntry, commit_directory, read_manifest, reuse_file, verify_directory

if TYPE_CHECKING:
    import pyarrow as pa  # loaded here: 60 MB that a plan does not need

SCHEMA_VERSION = 2
"""Version of the Parquet layout; others are rejected."""

BATCH_KINDS = (*ITERATION[:-1], "evaluation")
"""The step that wrote a batch."""


@dataclass(slots=True)
class TrajectoryBatch:
    """Trajectories of one step and the frames they show."""

    trajectories: list[Trajectory]
    images: dict[str, bytes]
    """PNG bytes by SHA-256 (`vagen.envs.images`)."""
    policy_version: str
    """Digest or name of the weights that sampled it."""
    config_digest: str
    """Digest of the experiment configuration."""
    kind: str
    """One of `BATCH_KINDS`."""
    iteration: int
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the step; stored in the manifest."""

    def save(self, directory: Path, previous: Path | None = None, *, replace: bool = False) -> Path:
        """Writes the batch to `directory` atomically, and returns the folder.

        Args:
            directory: The batch's folder; must not exist unless `replace` is set.
            previous: The input batch: unchanged files are shared by hard link.
            replace: Overwrite an existing folder.

        Raises:
            BatchError: Trajectories, turns, rows and images are inconsistent.
            StorageError: The folder exists or cannot be written.
        """
        payload = self.manifest_payload()
        with commit_directory(
            directory,
            kind=self.kind,
            schema_version=SCHEMA_VERSION,
            payload=payload,
            replace=replace,
        ) as partial:
            self.write(partial, previous)
        return directory

    def write(self, directory: Path, previous: Path | None = None) -> None:
        """Writes the Parquet files into an open folder, for a step that commits it itself.

        Such a step passes `manifest_payload()` and `SCHEMA_VERSION` to `commit_directory`.
        """
        from vagen.rollout.batch_tables import encode, parquet_bytes

        check_consistency(self.trajectories, self.images)
        known = read_manifest(previous).files if previous is not None else {}
        for name, table in encode(self.trajectories, self.images).items():
            file = f"{name}.parquet"
            content = parquet_bytes(table)
            if previous is not None and _is_same(content, known.get(file)):
                reuse_file(previous / file, directory / file)
            else:
                (directory / file).write_bytes(content)

    def manifest_payload(self) -> dict[str, Any]:
        """The batch's part of the manifest, besides its kind and files."""
        return {
            "policy_version": self.policy_version,
            "config_digest": self.config_digest,
            "iteration": self.iteration,
            "metrics": dict(self.metrics),
            "counts": _counts(self.trajectories, self.images),
        }

    @classmethod
    def load(
        cls, directory: Path, *, kind: str | None = None, config_digest: str | None = None
    ) -> "TrajectoryBatch":
        """Reads a batch with all checks.

        Args:
            directory: The batch's folder.
            kind: The required kind.
            config_digest: The required configuration.

        Raises:
            StorageError: There is no committed folder.
            CorruptArtifact: A file differs from the manifest; the message has both digests.
            BatchError: Kind, schema version, configuration or content do not match.
        """
        from vagen.rollout.batch_tables import TABLES, decode, read_table

        directory = Path(directory)
        manifest = verify_directory(directory)
        _check_header(directory, manifest.kind, manifest.schema_version, kind)
        payload = manifest.payload
        if config_digest is not None and payload.get("config_digest") != config_digest:
            raise BatchError(
                f"the batch {directory} was made under another configuration: it has digest "
                f"{payload.get('config_digest')}, this run has {config_digest}; use a batch of "
                "this run or run with the configuration of the batch"
            )
        tables = {}
        for name in TABLES:
            if f"{name}.parquet" not in manifest.files:
                raise BatchError(f"the batch {directory} has no {name}.parquet")
            tables[name] = read_table(directory / f"{name}.parquet", name)
        trajectories, images = decode(tables)
        check_consistency(trajectories, images)
        if payload.get("counts") != (found := _counts(trajectories, images)):
            raise BatchError(
                f"the batch {directory} holds {found}, its manifest says {payload.get('counts')}"
            )
        return cls(
            trajectories=trajectories,
            images=images,
            policy_version=payload["policy_version"],
            config_digest=payload["config_digest"],
            kind=manifest.kind,
            iteration=payload["iteration"],
            metrics=payload["metrics"],
        )


def _check_header(directory: Path, kind: str, schema_version: int, wanted: str | None) -> None:
    if kind not in BATCH_KINDS:
        raise BatchError(
            f"{directory} holds a {kind!r}, not a trajectory batch ({', '.join(BATCH_KINDS)})"
        )
    if schema_version != SCHEMA_VERSION:
        raise BatchError(
            f"the batch {directory} has schema version {schema_version}, this program reads "
            f"{SCHEMA_VERSION}: write it again with this program"
        )
    if wanted is not None and kind != wanted:
        raise BatchError(
            f"the batch {directory} comes from the step {kind!r}, this step needs one "
            f"from {wanted!r}"
        )


def _is_same(content: "pa.Buffer", entry: FileEntry | None) -> bool:
    if entry is None or entry.size != content.size:
        return False
    return hashlib.sha256(content).hexdigest() == entry.sha256


def _counts(trajectories: list[Trajectory], images: Mapping[str, bytes]) -> dict[str, int]:
    return {
        "trajectories": len(trajectories),
        "turns": sum(len(trajectory.turns) for trajectory in trajectories),
        "rows": sum(len(trajectory.rows) for trajectory in trajectories),
        "tokens": sum(row.input_ids.size for t in trajectories for row in t.rows),
        "images": len(images),
    }


__all__ = ["BATCH_KINDS", "SCHEMA_VERSION", "BatchError", "TrajectoryBatch"]
