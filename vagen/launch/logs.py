"""Logs of a run's Ray clusters in the run's store: lost with the clusters unless they are saved."""

import tempfile
from datetime import UTC, datetime
from pathlib import Path

from vagen.run.uris import split_uri
from vagen.storage import commit_directory, open_store

RAY_LOGS = "ray-logs"
"""Not a stage: a job that puts what Ray wrote on its nodes into the store."""
LOGS = "logs"
"""Folder of a run in its store: what its Ray clusters wrote, a folder each."""


def keep_logs(run: str, source: Path, kind: str) -> str:
    """Puts a committed folder of logs into the store of a run; returns its URI."""
    root, name = split_uri(run)
    stamp = f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    return open_store(root).put_directory(source, f"{name}/{LOGS}/{stamp}-{kind}")


def write_ray_logs(run: str) -> str:
    """In a Ray cluster: puts the logs of all its nodes into the store; returns their URI."""
    from vagen.engines.verl import node_logs

    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder) / LOGS
        with commit_directory(logs, kind=LOGS) as partial:
            for line in node_logs.write("auto", partial):
                print(f"not saved: {line}", flush=True)
        return keep_logs(run, logs, "ray")
