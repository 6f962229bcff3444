"""Rules by which KubeRay 1.6 refuses objects that the API server has accepted.

ray-operator/controllers/ray/utils/validation.go: `ValidateRayClusterMetadata`,
`ValidateRayClusterSpec`.
"""

import re
from typing import Any

Object = dict[str, Any]
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def raycluster_fault(cluster: Object) -> tuple[str, str] | None:
    """Reason and message of KubeRay's event, if it refuses a RayCluster."""
    name, spec = cluster["metadata"]["name"], cluster["spec"]
    if len(name) > 53 or not DNS_1035.fullmatch(name):
        return "InvalidRayClusterMetadata", "The RayCluster metadata is invalid"
    groups = [("Head", spec["headGroupSpec"])]
    for group in spec.get("workerGroupSpecs", []):
        groups.append((group["groupName"], group))
        if group["minReplicas"] > group["maxReplicas"]:
            return "InvalidRayClusterSpec", "minReplicas greater than maxReplicas"
        if group.get("suspend"):
            return "InvalidRayClusterSpec", "suspend needs the RayJobDeletionPolicy feature gate"
    for title, group in groups:
        params = group.get("rayStartParams", {})
        if not group["template"].get("spec", {}).get("containers"):
            return "InvalidRayClusterSpec", f"{title} should have at least one container"
        if group.get("resources") and {"num-cpus", "num-gpus", "memory", "resources"} & set(params):
            return "InvalidRayClusterSpec", f"resource fields set twice for {title} group"
        if "labels" in params:
            return "InvalidRayClusterSpec", f"rayStartParams['labels'] is not supported for {title}"
    return None
