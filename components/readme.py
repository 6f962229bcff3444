"""Writes each component's README and metadata from its code: `python -m components.readme`."""

import importlib
import inspect
import re
from pathlib import Path

import yaml

from vagen.launch.step import OWN_POD

ROOT = Path(__file__).parent
_ARGUMENT = re.compile(r"^    (\w+): (.*)$")


def names() -> list[str]:
    """Names of all components."""
    return sorted(path.parent.name for path in ROOT.glob("*/component.py"))


def readme(name: str) -> str:
    """The text of a component's README."""
    component = getattr(importlib.import_module(f"components.{name}.component"), name)
    function = component.python_func
    summary, arguments = _parse(inspect.getdoc(function) or "")
    spec = component.component_spec
    inputs, outputs = spec.inputs or {}, spec.outputs or {}
    lines = [
        f"# {name}",
        "",
        summary,
        "",
        "| input | type | |",
        "|---|---|---|",
        *(f"| `{key}` | {_type(spec.type)} | {arguments[key]} |" for key, spec in inputs.items()),
    ]
    if outputs:
        lines += [
            "",
            "| output | type | |",
            "|---|---|---|",
            *(
                f"| `{key}` | {_type(spec.type)} | {arguments[key]} |"
                for key, spec in outputs.items()
            ),
        ]
    return "\n".join(lines) + "\n"


def metadata(name: str) -> str:
    """The text of a component's `metadata.yaml`."""
    component = getattr(importlib.import_module(f"components.{name}.component"), name)
    summary, _ = _parse(inspect.getdoc(component.python_func) or "")
    spec = component.component_spec
    content = {
        "name": name,
        "description": summary,
        "component": f"components.{name}.component:{name}",
        "executed_by": _executor(name),
        "cached": False,
        "repeatable": True,
        "inputs": {key: _type(part.type) for key, part in (spec.inputs or {}).items()},
        "outputs": {key: _type(part.type) for key, part in (spec.outputs or {}).items()},
        "dependencies": {"kubeflow_pipelines": ">=2.17", "kfp": ">=2.17,<3"},
    }
    return "# Written by `python -m components.readme`.\n" + yaml.safe_dump(
        content, sort_keys=False, width=100
    )


def main() -> None:
    """Writes all of them."""
    for name in names():
        (ROOT / name / "README.md").write_text(readme(name))
        (ROOT / name / "metadata.yaml").write_text(metadata(name))


def _executor(name: str) -> str:
    """Where the work runs on Kubernetes with `infra.engine=verl`."""
    if name in ("begin", "finalize"):
        return "the step's pod, which waits for Kubernetes"
    return "the step's pod" if name in OWN_POD else "a job on the run's Ray cluster"


def _parse(doc: str) -> tuple[str, dict[str, str]]:
    summary = doc.split("\n\n", 1)[0]
    arguments = {}
    for line in doc.splitlines():
        if found := _ARGUMENT.match(line):
            arguments[found[1]] = found[2]
    return summary, arguments


def _type(name: str) -> str:
    """A readable form of `system.Dataset@0.0.1` and `NUMBER_INTEGER`."""
    plain = {
        "STRING": "string",
        "String": "string",
        "Integer": "integer",
        "NUMBER_INTEGER": "integer",
        "PipelineTaskFinalStatus": "how the pipeline ended",
    }
    return plain.get(name, name.removeprefix("system.").split("@")[0])


if __name__ == "__main__":
    main()
