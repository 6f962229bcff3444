"""Tests on a real cluster, which start trainings there: only `make test-cluster` runs them."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lake import lake_yaml
from place import Place, missing

sys.path += [str(Path(__file__).parents[1] / room) for room in ("k8s", "cluster")]
collect_ignore_glob = [] if os.environ.get("VAGEN_CLUSTER") else ["test_*.py"]


@pytest.fixture(scope="session")
def cluster() -> None:
    """There is a cluster with the platform."""
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def place(cluster: None) -> Iterator[Place]:
    """The cluster's services."""
    with Place.reached() as place:
        yield place


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A folder with an experiment of two short iterations."""
    folder = tmp_path_factory.mktemp("lake")
    (folder / "lake.yaml").write_text(lake_yaml(test_size=8))
    return folder
