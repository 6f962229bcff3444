"""Writes each component's README from its code: `python -m components.readme`."""

import importlib
import inspect
import re
from pathlib import Path

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
        produced = {"uri": "Folder of what was written.", "sha256": "Its SHA-256."}
        lines += [
            "",
            "| output | type | |",
            "|---|---|---|",
            *(
                f"| `{key}` | {_type(spec.type)} | {(arguments | produced)[key]} |"
                for key, spec in outputs.items()
            ),
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Writes all of them."""
    for name in names():
        (ROOT / name / "README.md").write_text(readme(name))


def _parse(doc: str) -> tuple[str, dict[str, str]]:
    summary = doc.split("\n\n", 1)[0]
    arguments = {}
    for line in doc.splitlines():
        if found := _ARGUMENT.match(line):
            arguments[found[1]] = found[2]
    return summary, arguments


def _type(name: str) -> str:
    """`system.Dataset@0.0.1` and `NUMBER_INTEGER` as a reader would say it."""
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
