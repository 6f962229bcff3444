"""`vagen cluster`: status and log of a run on Kubernetes, ending it, removing leftovers."""

import asyncio
import sys
from argparse import Namespace
from collections.abc import Callable

from vagen.cluster import (
    ClusterError,
    Kube,
    connect,
    delete_run,
    describe_run,
    forwarded_dashboard,
    gc,
)
from vagen.cluster.kube import RAYCLUSTERS
from vagen.cluster.names import RUN, RUN_NAME, label_value
from vagen.launch.ray_job import PATIENCE, Follower, Log, RayJobs


def cluster(options: Namespace) -> int:
    """Executes an action; returns 1 if the run has nothing on the cluster."""
    kube = connect(options.namespace, options.context)
    if options.action == "gc":
        return _gc(kube, dry_run=options.dry_run)
    run = find_run(kube, options.run)
    actions = {"status": _status, "logs": _logs, "stop": _stop, "delete": _delete}
    return actions[options.action](kube, run, options)


def find_run(kube: Kube, text: str) -> str:
    """The run's name: as it is, the end of its path or URI, or the newest for `latest`.

    Raises:
        ClusterError: There is no newest.
    """
    name = text.rstrip("/").rpartition("/")[2]
    if name != "latest":
        return name
    items = kube.list(RAYCLUSTERS, RUN).items
    if not items:
        raise ClusterError(f"namespace {kube.namespace} has no run: start with make submit")
    newest = max(items, key=lambda item: item["metadata"]["creationTimestamp"])
    return (
        newest["metadata"].get("annotations", {}).get(RUN_NAME, newest["metadata"]["labels"][RUN])
    )


def _status(kube: Kube, run: str, options: Namespace) -> int:
    found = describe_run(kube, run)
    print(found or f"run {run} has nothing in namespace {kube.namespace}")
    return 0 if found else 1


def _logs(kube: Kube, run: str, options: Namespace) -> int:
    """The newest Ray job's log; with `--follow` until it ends."""

    def show(jobs: RayJobs, job: str, over: bool) -> int:
        log = Log(lambda line: print(line, flush=True))
        if options.follow:
            asyncio.run(Follower(jobs, job, log, PATIENCE).follow(float("inf")))
        else:
            log.take(jobs.read_log(job), 0)
        return 0

    return _with_newest_job(kube, run, options, show)


def _stop(kube: Kube, run: str, options: Namespace) -> int:
    """Ends the running step; it fails, and the pipeline closes the run."""

    def stop(jobs: RayJobs, job: str, over: bool) -> int:
        if over:
            print(f"{job} has ended already: stop again once the next is there", file=sys.stderr)
            return 1
        jobs.stop(job)
        print(f"{job} is stopped; the pipeline's last step closes the run")
        return 0

    return _with_newest_job(kube, run, options, stop)


def _with_newest_job(
    kube: Kube, run: str, options: Namespace, act: Callable[[RayJobs, str, bool], int]
) -> int:
    clusters = kube.list(RAYCLUSTERS, f"{RUN}={label_value(run)}").items
    if not clusters:
        print(f"run {run} has no RayCluster in namespace {kube.namespace}", file=sys.stderr)
        return 1
    with forwarded_dashboard(kube, clusters[-1], options.context) as dashboard:
        jobs = RayJobs(dashboard, PATIENCE)
        newest = jobs.newest()
        if newest is None:
            print(f"run {run} has no Ray job yet", file=sys.stderr)
            return 1
        return act(jobs, str(newest.submission_id), newest.status.is_terminal())


def _delete(kube: Kube, run: str, options: Namespace) -> int:
    names = delete_run(kube, run)
    if not names:
        print(f"run {run} has nothing in namespace {kube.namespace}")
        return 1
    print("\n".join(f"deleted: RayCluster {name}" for name in names))
    return 0


def _gc(kube: Kube, *, dry_run: bool) -> int:
    found = gc(kube, dry_run=dry_run)
    for leftover in found:
        print(f"{'would be ' if dry_run and leftover.removed else ''}{leftover}")
    if not found:
        print(f"nothing to remove in namespace {kube.namespace}")
    return 0
