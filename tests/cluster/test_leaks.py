"""Whatever happens to a launcher, what it leaves behind has an end."""

import signal
import subprocess
import sys
import textwrap
import time
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from apiserver import Fault

from vagen.cluster import (
    ClusterError,
    await_raycluster,
    await_rayjob,
    delete_raycluster,
    ensure_raycluster,
    ensure_rayjob,
    gc,
)
from vagen.cluster.kube import RAYCLUSTERS, RAYJOBS
from vagen.cluster.names import EXPIRES_AT, TTL

pytestmark = pytest.mark.slow

LATER = timedelta(hours=25)


def launch(kube, manifest) -> None:
    ensure_raycluster(kube, manifest())
    await_raycluster(kube, "lake", pending_deadline=5)
    ensure_rayjob(
        kube,
        cluster="lake",
        task="lake-update-0000",
        run="lake",
        entrypoint=["true"],
        ttl_hours=24,
        active_deadline=60,
        stop_deadline=1,
    )
    await_rayjob(kube, "lake-update-0000", on_log=print, pending_deadline=5, running_deadline=5)


def hanging(driver):
    yield "it begins"
    driver.wait()


def assert_everything_ends(namespace) -> None:
    """All that there is has a time, after which `gc` leaves nothing."""
    for kind in ("RayCluster", "RayJob"):
        for item in namespace.store.all(kind):
            assert item["metadata"]["labels"][TTL] == "true"
            assert item["metadata"]["annotations"][EXPIRES_AT]
    kube = namespace.connect()
    gc(kube, now=datetime.now(UTC) + LATER)
    end = time.monotonic() + 5
    while any(namespace.store.all(kind) for kind in ("RayCluster", "RayJob", "Job", "Pod")):
        assert time.monotonic() < end, "something is left"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("match", "action"),
    [
        ("POST .*rayclusters", "lose"),
        ("POST .*rayclusters", "403"),
        ("GET .*rayclusters.*watch", "403"),
        ("GET .*events", "403"),
        ("POST .*rayjobs", "lose"),
        ("POST .*rayjobs", "403"),
        ("GET .*rayjobs.*watch", "403"),
        ("GET .*/log", "403"),
    ],
)
def test_a_fault_at_any_point_leaves_nothing_without_an_end(
    namespace, kube, manifest, match, action
) -> None:
    namespace.server.faults.append(Fault(match, action, times=10**6 if action == "403" else 1))
    if action == "lose":
        launch(kube, manifest)
    else:
        try:
            launch(kube, manifest)
        except ClusterError as error:
            assert "forbidden" in str(error)
    namespace.server.faults.clear()
    assert_everything_ends(namespace)


LAUNCHER = """
    import sys, yaml
    from vagen.cluster import *
    from vagen.cluster.kube import Pace
    kube = connect()
    kube.pace = Pace(timeout=5, retry=4, first_pause=.01, window=.2, grace=1)
    manifest = yaml.safe_load(open(sys.argv[1]))
    ensure_raycluster(kube, manifest)
    await_raycluster(kube, "lake", pending_deadline=20)
    ensure_rayjob(kube, cluster="lake", task="lake-update-0000", run="lake", entrypoint=["true"],
                  ttl_hours=24, active_deadline=600)
    await_rayjob(kube, "lake-update-0000", on_log=lambda line: print(line, flush=True),
                 pending_deadline=20, running_deadline=600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_launcher_that_is_ended_leaves_its_job_to_the_next(
    namespace, kube, manifest, tmp_path, number
) -> None:
    namespace.server.token = "a-token"
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "tests",
        "contexts": [
            {"name": "tests", "context": {"cluster": "c", "user": "u", "namespace": "vagen"}}
        ],
        "clusters": [{"name": "c", "cluster": {"server": namespace.server.url}}],
        "users": [{"name": "u", "user": {"token": "a-token"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig))
    (tmp_path / "manifest.yaml").write_text(yaml.safe_dump(manifest()))
    go_on = False

    def plan(driver):
        yield "it begins"
        while not go_on and not driver.killed.is_set():
            time.sleep(0.01)
        yield "it ends"

    namespace.operator.ray.plan = plan
    launcher = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(LAUNCHER), str(tmp_path / "manifest.yaml")],
        env={
            "KUBECONFIG": str(tmp_path / "config"),
            "PYTHONPATH": ":".join(path for path in sys.path if path),
            "PATH": "/usr/bin:/bin",
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout
    for line in launcher.stdout:
        if line.strip() == "it begins":
            break
    launcher.send_signal(number)
    assert launcher.wait(10) == -number
    launcher.stdout.close()
    go_on = True
    launch(namespace.connect(), manifest)
    assert len(namespace.operator.ray.history) == 1
    assert_everything_ends(namespace)


def test_gc_keeps_what_is_in_time_and_what_was_extended_meanwhile(
    namespace, kube, manifest
) -> None:
    ensure_raycluster(kube, manifest(ttl_hours=1))
    ensure_raycluster(kube, manifest(run="sea", ttl_hours=48))
    moment = datetime.now(UTC) + timedelta(hours=2)
    dry = gc(kube, dry_run=True, now=moment)
    assert [(one.name, one.removed) for one in dry] == [("lake", True)]
    assert len(namespace.store.all("RayCluster")) == 2

    class Meanwhile(type(kube)):
        """A step extends the cluster's time between the listing and the deletion."""

        def delete(self, resource, name, **options):
            ensure_raycluster(kube, manifest(ttl_hours=48))
            return super().delete(resource, name, **options)

    assert gc(Meanwhile(kube.api, kube.namespace, kube.pace), now=moment) == []
    assert len(namespace.store.all("RayCluster")) == 2
    assert gc(kube, now=moment) == []


def test_gc_says_what_it_cannot_date_and_what_is_going(namespace, kube, manifest) -> None:
    ensure_raycluster(kube, manifest())
    kube.patch(RAYCLUSTERS, "lake", {"metadata": {"annotations": {EXPIRES_AT: "tomorrow"}}})
    (undated,) = gc(kube)
    assert "is no time: 'tomorrow'" in str(undated)
    await_raycluster(kube, "lake", pending_deadline=5)
    namespace.operator.grace_rounds = 10**6
    kube.delete(RAYCLUSTERS, "lake", foreground=True)
    (going,) = gc(kube)
    assert "is being deleted since" in str(going)
    assert not going.removed
    namespace.operator.grace_rounds = 1


def test_gc_removes_finished_jobs_whose_cluster_is_gone(namespace, kube, manifest) -> None:
    launch(kube, manifest)
    kube.patch(RAYJOBS, "lake-update-0000", {"metadata": {"ownerReferences": []}})
    delete_raycluster(kube, "lake", wait=10)
    assert gc(kube) == []
    (job,) = gc(kube, now=datetime.now(UTC) + timedelta(hours=2))
    assert "its RayCluster lake is gone" in str(job)
    assert_everything_ends(namespace)


def test_a_running_driver_of_a_deleted_cluster_ends_with_it(namespace, kube, manifest) -> None:
    namespace.operator.ray.plan = hanging
    with pytest.raises(ClusterError):
        await_rayjob(kube, "no-such-job", on_log=print, pending_deadline=1, running_deadline=1)
    ensure_raycluster(kube, manifest())
    await_raycluster(kube, "lake", pending_deadline=5)
    ensure_rayjob(
        kube,
        cluster="lake",
        task="lake-update-0000",
        run="lake",
        entrypoint=["true"],
        ttl_hours=24,
        active_deadline=60,
    )
    while not namespace.operator.ray.history:
        time.sleep(0.01)
    delete_raycluster(kube, "lake", wait=10)
    (driver,) = namespace.operator.ray.history
    assert driver.ended
