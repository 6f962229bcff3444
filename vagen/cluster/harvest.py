"""Saves information that is lost with a RayCluster: logs of its pods, and states."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vagen.cluster.describe import describe_run
from vagen.cluster.errors import ApiError
from vagen.cluster.kube import PODS, RAYCLUSTERS, Kube, Object
from vagen.cluster.names import RUN, label_value

LOG_LIMIT = 64 << 20
"""Maximum bytes from the end of a container's log."""


@dataclass(frozen=True, slots=True)
class Harvest:
    """Saved files, and failures."""

    files: list[Path]
    missing: list[str]


def harvest_logs(kube: Kube, run: str, target: Path) -> Harvest:
    """Writes a run's logs and states into a folder: `<pod>/<container>.log`, `status.txt`, ...

    `.previous.log` is the log of a container before its restart. Unreadable logs are reported and
    do not stop the others.

    Args:
        kube: The API server.
        run: Name of the run.
        target: A folder, created if missing.
    """
    target.mkdir(parents=True, exist_ok=True)
    selector = f"{RUN}={label_value(run)}"
    files, missing = [], []
    state = target / "status.txt"
    state.write_text(describe_run(kube, run).text() + "\n")
    files.append(state)
    path = target / f"{RAYCLUSTERS.plural}.json"
    path.write_text(json.dumps(kube.list(RAYCLUSTERS, selector).items, indent=1))
    files.append(path)
    for pod in kube.list(PODS, selector).items:
        folder = target / pod["metadata"]["name"]
        for container, previous in _containers(pod):
            path = folder / f"{container}{'.previous' if previous else ''}.log"
            try:
                text = _log(kube, pod, container, previous)
            except ApiError as error:
                missing.append(f"{path.relative_to(target)}: {error}")
                continue
            folder.mkdir(exist_ok=True)
            path.write_text(text)
            files.append(path)
    return Harvest(files, missing)


def _containers(pod: Object) -> Iterator[tuple[str, bool]]:
    """Started containers of a pod, and whether to get the log before its restart."""
    status = pod.get("status", {})
    for container in [
        *status.get("initContainerStatuses", []),
        *status.get("containerStatuses", []),
    ]:
        if "terminated" in container.get("lastState", {}):
            yield container["name"], True
        if "waiting" not in container.get("state", {"waiting": {}}):
            yield container["name"], False


def _log(kube: Kube, pod: Object, container: str, previous: bool) -> str:
    query = {"tailLines": "200000", **({"previous": "true"} if previous else {})}
    return kube.log(pod["metadata"]["name"], container, **query)[-LOG_LIMIT:]
