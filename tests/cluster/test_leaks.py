"""Whatever happens to a launcher, what it leaves behind has an end."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from apiserver import Fault

from vagen.cluster import (
    ClusterError,
    await_raycluster,
    delete_run,
    ensure_raycluster,
    gc,
    renew_lease,
)
from vagen.cluster.kube import RAYCLUSTERS
from vagen.cluster.names import LEASE_UNTIL, LEASED

pytestmark = pytest.mark.slow

LATER = timedelta(hours=25)


def launch(kube, manifest) -> None:
    ensure_raycluster(kube, manifest())
    await_raycluster(kube, "lake", pending_deadline=5)


def assert_everything_ends(namespace) -> None:
    """All that there is has a time, after which `gc` leaves nothing."""
    for item in namespace.store.all("RayCluster"):
        assert item["metadata"]["labels"][LEASED] == "true"
        assert item["metadata"]["annotations"][LEASE_UNTIL]
    kube = namespace.connect()
    gc(kube, now=datetime.now(UTC) + LATER)
    end = time.monotonic() + 5
    while any(namespace.store.all(kind) for kind in ("RayCluster", "Pod")):
        assert time.monotonic() < end, "something is left"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("match", "action"),
    [
        ("POST .*rayclusters", "lose"),
        ("POST .*rayclusters", "403"),
        ("GET .*rayclusters.*watch", "403"),
        ("GET .*events", "403"),
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


def test_gc_keeps_what_is_in_time_and_what_was_extended_meanwhile(
    namespace, kube, manifest
) -> None:
    ensure_raycluster(kube, manifest(lease_minutes=60))
    ensure_raycluster(kube, manifest(run="sea", lease_minutes=2880))
    moment = datetime.now(UTC) + timedelta(hours=2)
    dry = gc(kube, dry_run=True, now=moment)
    assert [(one.name, one.removed) for one in dry] == [("lake", True)]
    assert len(namespace.store.all("RayCluster")) == 2

    # pyrefly: ignore[invalid-inheritance]
    class Meanwhile(type(kube)):
        """A step extends the cluster's time between the listing and the deletion."""

        def delete(self, resource, name, **options):
            renew_lease(kube, "lake", 2880)
            return super().delete(resource, name, **options)

    assert gc(Meanwhile(kube.api, kube.namespace, kube.pace), now=moment) == []
    assert len(namespace.store.all("RayCluster")) == 2
    assert gc(kube, now=moment) == []


def test_gc_says_what_it_cannot_date_and_what_is_going(namespace, kube, manifest) -> None:
    ensure_raycluster(kube, manifest())
    kube.patch(RAYCLUSTERS, "lake", {"metadata": {"annotations": {LEASE_UNTIL: "tomorrow"}}})
    (undated,) = gc(kube)
    assert "is no time: 'tomorrow'" in str(undated)
    await_raycluster(kube, "lake", pending_deadline=5)
    namespace.operator.grace_rounds = 10**6
    kube.delete(RAYCLUSTERS, "lake")
    (going,) = gc(kube)
    assert "is being deleted since" in str(going)
    assert not going.removed
    namespace.operator.grace_rounds = 1


def test_a_run_s_clusters_are_deleted_by_its_label_and_no_others(namespace, kube, manifest) -> None:
    for run, name in (("lake", "lake"), ("lake", "lake-before"), ("sea", "sea")):
        ensure_raycluster(kube, manifest(run=run, name=name))
    assert delete_run(kube, "lake", wait=5) == ["lake", "lake-before"]
    assert [one["metadata"]["name"] for one in namespace.store.all("RayCluster")] == ["sea"]
    assert delete_run(kube, "lake") == []
