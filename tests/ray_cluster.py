"""Clusters of Ray on this machine, without tokens and dashboard."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def ray_files() -> Iterator[None]:
    """Ray's files in a short path of their own (its sockets' paths may have 107 characters)."""
    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", folder)
        yield


@contextmanager
def nodes(count: int, gpus: int = 1) -> Iterator[tuple[str, ...]]:
    """A cluster of nodes on this machine; gives infra's settings.

    Args:
        count: Of nodes.
        gpus: Ranks that each has room for.
    """
    import ray
    from ray.cluster_utils import Cluster

    with ray_files():
        cluster = Cluster()
        try:
            for _ in range(count):
                # Without what nobody reads here: each is a cold Python.
                spared = {"include_dashboard": False, "include_log_monitor": False}
                cores = 20 * gpus // count
                cluster.add_node(num_gpus=gpus, num_cpus=cores, no_monitor=True, **spared)
            yield f"verl.nnodes={count}", f"verl.ray_address={cluster.address}"
        finally:
            ray.shutdown()  # a node that somebody is connected to is not removed
            cluster.shutdown()
