"""Saves logs of a run's Ray clusters in the run's store, before the clusters are deleted."""

import tempfile
from datetime import UTC, datetime
from pathlib import Path

from vagen.run.layout import split_uri
from vagen.storage import commit_directory, open_store

RAY_LOGS = "ray-logs"
"""Pseudo stage: a job that saves Ray's logs of its nodes in the store."""
LOGS = "logs"
"""Folder of a run in its store with a folder of logs per Ray cluster."""


def keep_logs(run: str, source: Path, kind: str) -> str:
    """Puts a committed folder of logs into a run's store; returns its URI."""
    root, name = split_uri(run)
    stamp = f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    return open_store(root).put_directory(source, f"{name}/{LOGS}/{stamp}-{kind}")


def write_ray_logs(run: str) -> str:
    """Runs in a Ray cluster: saves the logs of all nodes in the store; returns their URI."""
    from vagen.engines.verl import node_logs

    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder) / LOGS
        with commit_directory(logs, kind=LOGS) as partial:
            for line in node_logs.write("auto", partial):
                print(f"not saved: {line}", flush=True)
        return keep_logs(run, logs, "ray")
