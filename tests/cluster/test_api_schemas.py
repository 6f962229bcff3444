"""The tests' description of KubeRay's API: against the released definitions, where they are."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_schemas import definitions

CRDS = os.environ.get("KUBERAY_CRDS", "")


def released() -> dict[str, Any]:
    path = Path(CRDS) / "ray.io_rayclusters.yaml"
    document = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (version,) = [one for one in document["spec"]["versions"] if one["name"] == "v1"]
    return version["schema"]["openAPIV3Schema"]


def compare(ours: Any, theirs: dict[str, Any], place: str) -> list[str]:
    """Differences in fields, requirements and defaults; pod templates are Kubernetes' own."""
    reference = ours.get("$ref", "")
    if reference.startswith("#/$defs/"):
        ours = definitions()["$defs"][reference.rpartition("/")[2]]
    elif reference:
        return []
    if place.endswith((".template", "submitterPodTemplate")) or "properties" not in ours:
        return []
    found = []
    if set(ours["properties"]) != set(theirs.get("properties", {})):
        found.append(f"{place}: {set(ours['properties']) ^ set(theirs.get('properties', {}))}")
    if set(ours.get("required", [])) != set(theirs.get("required", [])):
        found.append(f"{place}: required")
    for key, part in ours["properties"].items():
        other = theirs.get("properties", {}).get(key, {})
        if part.get("default") != other.get("default"):
            found.append(f"{place}.{key}: default {part.get('default')} {other.get('default')}")
        if "items" in part:
            found += compare(part["items"], other.get("items", {}), f"{place}.{key}[]")
        found += compare(part, other, f"{place}.{key}")
    return found


@pytest.mark.skipif(not CRDS, reason="KUBERAY_CRDS names no folder with KubeRay's definitions")
def test_our_description_is_that_of_the_release() -> None:
    ours = definitions()["$defs"]["RayCluster"]["properties"]
    theirs = released()["properties"]
    assert compare(ours["spec"], theirs["spec"], "spec") == []
    assert compare(ours["status"], theirs["status"], "status") == []


def _closed(schema: Any) -> Any:
    """Refuses unknown fields, as `fieldValidation=Strict` does; defaults meet requirements."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    properties = closed.get("properties")
    if isinstance(properties, dict) and closed.get("type") == "object":
        if not closed.get("x-kubernetes-preserve-unknown-fields"):
            closed.setdefault("additionalProperties", False)
        if "required" in closed:
            closed["required"] = [
                key for key in closed["required"] if "default" not in properties.get(key, {})
            ]
    return closed
