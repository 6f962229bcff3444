"""Checks rendered manifests against the API's schemas, strictly: an unknown field is an error.

    python k8s/validate/schemas.py [--kubernetes 1.33] [--crds FOLDER] FILE...

Kubernetes' own kinds are checked with the package kubernetes-validate, and so are the pod templates
inside a RayCluster, also inside the ConfigMap that holds one. Other kinds are checked against the
CustomResourceDefinitions in FOLDER, if given; how many were left unchecked is said.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

Object = dict[str, Any]


def is_built_in(version: str) -> bool:
    """Whether Kubernetes itself defines an `apiVersion`."""
    if version == "v1" or version.startswith(("apps/", "batch/", "autoscaling/", "policy/")):
        return True
    return version.split("/")[0] in (
        "rbac.authorization.k8s.io",
        "networking.k8s.io",
        "scheduling.k8s.io",
    )


def objects(path: Path) -> Iterator[Object]:
    """Objects of a file, and those that they carry inside."""
    for document in yaml.safe_load_all(path.read_text()):
        if document:
            yield from unfold(document)


def unfold(document: Object) -> Iterator[Object]:
    """An object, the RayCluster in a ConfigMap, the pod templates in a RayCluster."""
    yield document
    if document["kind"] == "ConfigMap":
        for key, text in document.get("data", {}).items():
            if key == "raycluster.yaml":
                yield from unfold(yaml.safe_load(text))
    if document["kind"] == "RayCluster":
        spec = document["spec"]
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            name = f"{document['metadata']['name']}-{group.get('groupName', 'head')}"
            yield {
                "apiVersion": "v1",
                "kind": "PodTemplate",
                "metadata": {"name": name},
                "template": group["template"],
            }


def custom_schemas(folder: Path) -> dict[tuple[str, str], Object]:
    """Schemas of the CRDs in a folder, by `apiVersion` and kind; closed to unknown fields."""
    found = {}
    for path in sorted(folder.rglob("*.yaml")):
        for crd in yaml.load_all(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if not crd or crd.get("kind") != "CustomResourceDefinition":
                continue
            for version in crd["spec"]["versions"]:
                key = (f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"])
                found[key] = closed(version["schema"]["openAPIV3Schema"])
                found[key]["properties"]["metadata"] = True
    return found


def closed(schema: Any) -> Any:
    """A schema as the API server applies it with `fieldValidation=Strict`.

    What has a default is not required; `format` and the like of Kubernetes' own are left out.
    """
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items() if key not in ("format",)}
    properties = schema.get("properties")
    if isinstance(properties, dict) and "type" in schema:
        required = [
            name for name in schema.get("required", []) if "default" not in properties.get(name, {})
        ]
        result["required"] = required
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            result.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
        result["type"] = ["integer", "string"]
    return result


def faults(document: Object, version: str, custom: dict[tuple[str, str], Object]) -> str | None:
    """What is wrong with an object; None if nothing is, "?" if nobody knows its kind."""
    if is_built_in(document["apiVersion"]):
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            return f"{'.'.join(map(str, error.path))}: {error.message}"
        return None
    schema = custom.get((document["apiVersion"], document["kind"]))
    if schema is None:
        return "?"
    error = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(schema).iter_errors(document)
    )
    return error and f"{error.json_path}: {error.message[:300]}"


def main() -> int:
    """Prints every fault; 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--kubernetes", default="1.33", help="version of the API, e.g. 1.33")
    parser.add_argument("--crds", type=Path, help="folder of CustomResourceDefinitions")
    arguments = parser.parse_args()
    custom = custom_schemas(arguments.crds) if arguments.crds else {}
    checked, unknown, failed = 0, Counter[str](), 0
    for path in arguments.files:
        for document in objects(path):
            fault = faults(document, arguments.kubernetes, custom)
            if fault == "?":
                unknown[document["kind"]] += 1
                continue
            checked += 1
            if fault:
                failed += 1
                name = document["metadata"].get("name")
                print(f"{path}: {document['kind']} {name}: {fault}", file=sys.stderr)
    left = ", ".join(f"{count} {kind}" for kind, count in sorted(unknown.items())) or "none"
    print(
        f"{checked} objects against Kubernetes {arguments.kubernetes}, {failed} wrong; "
        f"without a schema here: {left}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
