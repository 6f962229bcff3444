"""Tells Kubeflow's Model Registry of a deployed version; MLflow's registry stays the source.

Its REST API is v1alpha3 (kubeflow/model-registry, api/openapi/model-registry.yaml).
"""

from typing import Any

import httpx

from vagen.deploy.agent import Agent

_ROOT = "/api/model_registry/v1alpha3"
_SECONDS = 15.0


def tell_model_registry(address: str, agent: Agent, success: float, reason: str) -> None:
    """Creates the registered model, its version and the artifact with the checkpoint's URI.

    Repeated calls update the version.

    Args:
        address: The registry, such as `http://model-registry-service.kubeflow.svc:8080`.
        agent: The deployed version.
        success: Its success on the held-out levels, 0 to 1.
        reason: The result of its gate.

    Raises:
        httpx.HTTPError: It does not answer, or refuses.
    """
    with httpx.Client(base_url=address.rstrip("/") + _ROOT, timeout=_SECONDS) as registry:
        model = _ensure(registry, "registered_model", {"name": agent.model}, {})
        told = {
            "description": reason,
            "customProperties": {
                "success": {"metadataType": "MetadataDoubleValue", "double_value": success},
                **{
                    name: {"metadataType": "MetadataStringValue", "string_value": text}
                    for name, text in (("mlflow", agent.model_uri), ("run", agent.run))
                },
            },
        }
        key = {"name": agent.version, "parentResourceId": model}
        version = _ensure(registry, "model_version", key, {"registeredModelId": model, **told})
        artifact = {"artifactType": "model-artifact", "name": "checkpoint", "uri": agent.checkpoint}
        artifacts = f"/model_versions/{version}/artifacts"
        if not registry.get(artifacts).raise_for_status().json()["items"]:
            registry.post(artifacts, json=artifact).raise_for_status()
        registry.patch(f"/model_versions/{version}", json=told).raise_for_status()


def _ensure(registry: httpx.Client, kind: str, key: dict[str, str], body: dict[str, Any]) -> str:
    """Id of an object, which is created unless it exists."""
    found = registry.get(f"/{kind}", params=key)
    if found.status_code == 404:
        found = registry.post(f"/{kind}s", json={"name": key["name"], **body})
    return str(found.raise_for_status().json()["id"])
