"""`vagen cluster`: what a run has on Kubernetes, its log, its end, and what is left of others."""

import sys
from argparse import Namespace

from vagen.cluster import (
    ClusterError,
    Kube,
    connect,
    delete_raycluster,
    delete_rayjobs,
    describe_run,
    gc,
)
from vagen.cluster.jobs import TERMINAL
from vagen.cluster.kube import PODS, RAYCLUSTERS, RAYJOBS
from vagen.cluster.logs import LogFollower
from vagen.cluster.names import JOB_NAME, RUN, RUN_NAME, label_value
from vagen.cluster.watching import follow


def cluster(options: Namespace) -> int:
    """Executes one of the actions; returns 1 if there is nothing of the run."""
    kube = connect(options.namespace, options.context)
    if options.action == "gc":
        return _gc(kube, dry_run=options.dry_run)
    run = find_run(kube, options.run)
    return {"status": _status, "logs": _logs, "delete": _delete}[options.action](kube, run, options)


def find_run(kube: Kube, text: str) -> str:
    """The run's name: as it is, the end of its path or URI, or the newest for `latest`.

    Raises:
        ClusterError: There is no newest.
    """
    name = text.rstrip("/").rpartition("/")[2]
    if name != "latest":
        return name
    items = [item for kind in (RAYCLUSTERS, RAYJOBS) for item in kube.list(kind, RUN).items]
    if not items:
        raise ClusterError(f"namespace {kube.namespace} has no run: start with make submit")
    newest = max(items, key=lambda item: item["metadata"]["creationTimestamp"])
    return (
        newest["metadata"].get("annotations", {}).get(RUN_NAME, newest["metadata"]["labels"][RUN])
    )


def _status(kube: Kube, run: str, options: Namespace) -> int:
    state = describe_run(kube, run)
    print(state.text())
    return 0 if state.exists else 1


def _logs(kube: Kube, run: str, options: Namespace) -> int:
    """The newest RayJob's log; with `--follow` until it ends."""
    jobs = kube.list(RAYJOBS, f"{RUN}={label_value(run)}").items
    if not jobs:
        print(f"run {run} has no RayJob in namespace {kube.namespace}", file=sys.stderr)
        return 1
    newest = max(jobs, key=lambda job: job["metadata"]["creationTimestamp"])
    name = newest["metadata"]["name"]
    if not options.follow:
        for pod in kube.list(PODS, f"{JOB_NAME}={name}").items:
            container = pod["spec"]["containers"][0]["name"]
            print(kube.log(pod["metadata"]["name"], container), end="")
        return 0
    follower = LogFollower(kube, name, lambda line: print(line, flush=True))
    follower.start()
    for job in follow(kube, RAYJOBS, name):
        status = (job or {}).get("status", {})
        if follower.error:
            raise follower.error
        if job is None or status.get("jobDeploymentStatus") in TERMINAL:
            follower.finish(kube.pace.timeout)
            break
    return 0


def _delete(kube: Kube, run: str, options: Namespace) -> int:
    jobs = delete_rayjobs(kube, run)
    clusters = kube.list(RAYCLUSTERS, f"{RUN}={label_value(run)}").items
    for item in clusters:
        delete_raycluster(kube, item["metadata"]["name"])
    if not jobs and not clusters:
        print(f"run {run} has nothing in namespace {kube.namespace}")
        return 1
    names = [f"RayCluster {item['metadata']['name']}" for item in clusters]
    print("\n".join(f"deleted: {name}" for name in [*(f"RayJob {job}" for job in jobs), *names]))
    return 0


def _gc(kube: Kube, *, dry_run: bool) -> int:
    found = gc(kube, dry_run=dry_run)
    for leftover in found:
        print(f"{'would be ' if dry_run and leftover.removed else ''}{leftover}")
    if not found:
        print(f"nothing to remove in namespace {kube.namespace}")
    return 0
