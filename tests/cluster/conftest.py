"""A namespace of a cluster: API server, operator, and a client that is not patient."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from apiserver import ApiServer
from kuberay import Operator
from kubernetes import client

from vagen.cluster.kube import Kube, Pace
from vagen.cluster.render import render_raycluster

QUICK = Pace(timeout=5, retry=4, first_pause=0.01, longest_pause=0.1, window=0.15, grace=0.3)

TEMPLATE = """\
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  annotations: {platform.example/team: rl}
spec:
  rayVersion: 2.60.0
  headGroupSpec:
    rayStartParams: {num-cpus: "0", dashboard-host: 0.0.0.0}
    template:
      metadata:
        labels: {platform.example/pool: cpu}
      spec:
        serviceAccountName: vagen-ray
        imagePullSecrets: [{name: registry}]
        securityContext: {runAsNonRoot: true, runAsUser: 10001}
        tolerations: [{key: pool, value: cpu, effect: NoSchedule}]
        containers:
          - name: ray-head
            image: registry.example/vagen/trainer:1
            env: [{name: RAY_LOG, value: info}]
            resources: {limits: {cpu: "4", memory: 16Gi}, requests: {cpu: "4", memory: 16Gi}}
  workerGroupSpecs:
    - groupName: gpu
      rayStartParams: {}
      minReplicas: 1
      maxReplicas: 1
      template:
        spec:
          containers:
            - name: ray-worker
              image: registry.example/vagen/trainer:1
              resources:
                limits: {cpu: "64", memory: 512Gi, nvidia.com/gpu: "8"}
                requests: {cpu: "64", memory: 512Gi, nvidia.com/gpu: "8"}
              volumeMounts: [{name: shm, mountPath: /dev/shm}]
          volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 64Gi}}]
"""


@dataclass
class Namespace:
    server: ApiServer
    operator: Operator
    kube: Kube

    @property
    def store(self) -> Any:
        return self.server.store

    def connect(self, pace: Pace = QUICK) -> Kube:
        settings: Any = client.Configuration()
        settings.host = self.server.url
        if self.server.token:
            settings.api_key["authorization"] = f"Bearer {self.server.token}"
        return Kube(client.ApiClient(settings), "vagen", pace)


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
