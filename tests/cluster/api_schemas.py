"""Validation as the API server does it: KubeRay's kinds, strictly, with defaults."""

import functools
import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

RAY_SCHEMA = Path(__file__).parent.parent / "data" / "kuberay" / "ray-v1.yaml"
KUBERNETES = "kubernetes-json-schema/v1.33.0-local-strict"
MAP_KEYS = {"env": ["name"], "volumeMounts": ["mountPath"], "ports": ["containerPort", "protocol"]}
"""Lists of containers that are maps, by these keys: no entry may come twice."""


@functools.cache
def definitions() -> dict[str, Any]:
    return yaml.safe_load(RAY_SCHEMA.read_text())


@functools.cache
def _registry() -> Registry:
    def retrieve(uri: str) -> Resource:
        name = uri.removeprefix("https://kubernetes.io/api/")
        text = (files("kubernetes_validate") / KUBERNETES / name).read_text()
        return Resource.from_contents(json.loads(text), DRAFT202012)

    ray = Resource.from_contents(definitions(), DRAFT202012)
    # pyrefly: ignore[unexpected-keyword]
    return Registry(retrieve=retrieve).with_resource(definitions()["$id"], ray)


@functools.cache
def _validator(kind: str) -> Draft202012Validator:
    schema = {"$ref": f"{definitions()['$id']}#/$defs/{kind}"}
    return Draft202012Validator(schema, registry=_registry())


def faults(body: dict[str, Any]) -> list[str]:
    """What is wrong with an object of KubeRay's."""
    errors = _validator(body["kind"]).iter_errors(body)
    found = [f"{error.json_path}: {error.message}" for error in errors]
    return found + list(_doubles(body, "$"))


def _doubles(node: Any, place: str) -> Iterator[str]:
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from _doubles(item, f"{place}[{index}]")
    elif isinstance(node, dict):
        for key, value in node.items():
            keys = MAP_KEYS.get(key)
            if keys and isinstance(value, list) and "image" in node:
                marks = [tuple(entry.get(one, "TCP") for one in keys) for entry in value]
                if len(set(marks)) < len(marks):
                    yield f"{place}.{key}: Duplicate value"
            yield from _doubles(value, f"{place}.{key}")


def set_defaults(body: dict[str, Any]) -> None:
    """Fills in the defaults, in place, as admission does before it validates."""
    for part in ("spec", "status"):
        schema = definitions()["$defs"][body["kind"]]["properties"][part]
        if part in body:
            _default(body[part], schema)


def _default(node: Any, schema: dict[str, Any]) -> None:
    reference = schema.get("$ref", "")
    if reference.startswith("#/$defs/"):
        schema = definitions()["$defs"][reference.rpartition("/")[2]]
    if isinstance(node, list) and "items" in schema:
        for item in node:
            _default(item, schema["items"])
    elif isinstance(node, dict):
        for key, part in schema.get("properties", {}).items():
            if part is True:
                continue
            if key not in node and "default" in part:
                node[key] = part["default"]
            elif key in node:
                _default(node[key], part)
