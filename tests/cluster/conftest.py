"""Fixtures: a namespace, a client, and what a run asks for."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from cluster_place import TEMPLATE, Namespace, open_namespace

from vagen.cluster.kube import Kube
from vagen.cluster.render import render_raycluster


@pytest.fixture
def template() -> dict[str, Any]:
    return yaml.safe_load(TEMPLATE)


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    with open_namespace() as place:
        yield place


@pytest.fixture
def kube(namespace: Namespace) -> Kube:
    return namespace.kube


@pytest.fixture
def manifest(template):
    def make(run: str = "lake", **changes: Any) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "name": run,
            "run": run,
            "workers": 2,
            "gpus_per_worker": 8,
            "lease_minutes": 60,
        }
        return render_raycluster(template, **{**settings, **changes})

    return make
