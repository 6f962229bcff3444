"""Collects logs of Ray's processes from each node of a cluster, before its pods are deleted."""

from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

TAIL = 1 << 20
"""Bytes read from the end of a file."""
FILES = 500
"""Newest files read per node."""
SECONDS = 120.0
DEFAULT = Path("/tmp/ray/session_latest/logs")


def write(address: str, folder: Path) -> list[str]:
    """Writes the logs of every node into `folder/<address of the node>/`.

    Args:
        address: Address of the cluster.
        folder: Exists.

    Returns:
        A message for each node or file that could not be read.
    """
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False)
    missing = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        name = node["NodeManagerAddress"]
        task = _read.options(
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


@ray.remote
def _read() -> dict[str, bytes]:
    """Ends of this node's log files by name."""
    folder = _logs_folder()
    files = [path for path in folder.rglob("*") if path.is_file()]
    newest = sorted(files, key=lambda path: path.stat().st_mtime)[-FILES:]
    found = {}
    for path in newest:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            found[path.relative_to(folder).as_posix()] = file.read(TAIL)
    return found


def _logs_folder() -> Path:
    # Ray has no public API for it.
    node = getattr(ray._private.worker, "_global_node", None)
    return Path(node.get_logs_dir_path()) if node is not None else DEFAULT
