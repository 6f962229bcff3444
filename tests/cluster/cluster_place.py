"""A namespace of a cluster: API server, operator, and clients that are not patient."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from apiserver import ApiServer
from kuberay import Operator
from kubernetes import client

from vagen.cluster.kube import Kube, Pace

QUICK = Pace(timeout=5, retry=4, first_pause=0.01, longest_pause=0.1, window=0.15, grace=0.3)

TEMPLATE = """\
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  annotations: {platform.example/team: rl}
spec:
  rayVersion: 2.60.0
  authOptions: {mode: token, secretName: vagen-ray-token}
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

    def write_kubeconfig(self, folder: Path) -> Path:
        """A kubeconfig with which a program reaches this namespace."""
        self.server.token = "a-token"
        self.kube = self.connect()
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "contexts": [
                {"name": "tests", "context": {"cluster": "c", "user": "u", "namespace": "vagen"}}
            ],
            "clusters": [{"name": "c", "cluster": {"server": self.server.url}}],
            "users": [{"name": "u", "user": {"token": self.server.token}}],
        }
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(content))
        return path


@contextmanager
def open_namespace() -> Iterator[Namespace]:
    """An API server and an operator, for as long as they are needed."""
    server = ApiServer()
    operator = Operator(server.store)
    server.logs = operator.read_log
    place = Namespace(server, operator, kube=None)  # type: ignore[arg-type]
    place.kube = place.connect()
    try:
        yield place
    finally:
        operator.close()
        server.close()
