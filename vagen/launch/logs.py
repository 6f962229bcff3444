"""Saves logs of a run's Ray clusters in the run's store, before the clusters are deleted."""

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vagen.run.layout import split_uri
from vagen.storage import commit_directory, open_store

RAY_LOGS = "ray-logs"
"""Pseudo stage: a job that saves Ray's logs of its nodes in the store."""
LOGS = "logs"
"""Folder of a run in its store with a folder of logs per Ray cluster."""
TAIL = 1 << 20
"""Bytes read from the end of a file."""
FILES = 500
"""Newest files read per node."""
SECONDS = 120.0
"""Timeout of a node."""


def keep_logs(run: str, source: Path, kind: str) -> str:
    """Puts a committed folder of logs into a run's store; returns its URI."""
    root, name = split_uri(run)
    stamp = f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    return open_store(root).put_directory(source, f"{name}/{LOGS}/{stamp}-{kind}")


def write_ray_logs(run: str) -> str:
    """Runs in a Ray cluster: saves the logs of all nodes in the store; returns their URI."""
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder) / LOGS
        with commit_directory(logs, kind=LOGS) as partial:
            for line in write_node_logs(partial):
                print(f"not saved: {line}", flush=True)
        return keep_logs(run, logs, "ray")


def write_node_logs(folder: Path) -> list[str]:
    """Writes logs of the connected Ray cluster's processes into `folder/<address of the node>/`.

    Returns:
        A message for each node that could not be read.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    missing = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        name = node["NodeManagerAddress"]
        task = ray.remote(_newest_logs).options(
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        )
        try:
            files = ray.get(task.remote(), timeout=SECONDS)
        except (ray.exceptions.RayError, TimeoutError) as error:
            missing.append(f"{name}: {str(error).strip().splitlines()[0]}")
            continue
        place = folder / f"{name}-{node['NodeID'][:8]}"
        for path, content in files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(content)
    return missing


def _newest_logs() -> dict[str, bytes]:
    """Ends of this node's log files by name."""
    import ray

    node: Any = ray._private.worker._global_node  # there is no public way to the folder
    folder = Path(node.get_logs_dir_path())
    files = [path for path in folder.rglob("*") if path.is_file()]
    newest = sorted(files, key=lambda path: path.stat().st_mtime)[-FILES:]
    found = {}
    for path in newest:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            found[path.relative_to(folder).as_posix()] = file.read(TAIL)
    return found
