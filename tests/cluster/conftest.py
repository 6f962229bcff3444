"""Fixtures: a namespace, a client, and what a run asks for."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from apiserver import ApiServer
from cluster_place import TEMPLATE, Namespace
from kuberay import Operator

from vagen.cluster.kube import Kube
from vagen.cluster.render import render_raycluster


@pytest.fixture
def template() -> dict[str, Any]:
    return yaml.safe_load(TEMPLATE)


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    server = ApiServer()
    operator = Operator(server.store)
    server.logs, server.writing = operator.read_log, operator.is_writing
    place = Namespace(server, operator, kube=None)  # type: ignore[arg-type]
    place.kube = place.connect()
    yield place
    server.chaos = None
    operator.close()
    server.close()


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
            "ttl_hours": 24,
        }
        return render_raycluster(template, **{**settings, **changes})

    return make
