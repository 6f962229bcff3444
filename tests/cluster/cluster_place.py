"""A namespace of a cluster: API server, operator, and clients that are not patient."""

from dataclasses import dataclass
from typing import Any

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
