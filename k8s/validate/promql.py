"""Parses every expression of rendered PrometheusRules and Grafana dashboards.

python k8s/validate/promql.py FILE...
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import promql_parser
import yaml


def expressions(path: Path) -> Iterator[str]:
    """Expressions of a rendering; those of a dashboard with a value for Grafana's variables."""
    for found in yaml.safe_load_all(path.read_text()):
        if found["kind"] == "PrometheusRule":
            for group in found["spec"]["groups"]:
                yield from (rule["expr"] for rule in group["rules"])
        for name, text in (found.get("data") or {}).items():
            if name.endswith(".json") and found["kind"] == "ConfigMap":
                for panel in json.loads(text)["panels"]:
                    yield from (target["expr"] for target in panel["targets"])


def main() -> int:
    """Prints every expression that is none; 1 if there is one."""
    found = [(path, text) for path in map(Path, sys.argv[1:]) for text in expressions(path)]
    failed = 0
    for path, text in found:
        try:
            promql_parser.parse(text)
        except ValueError as error:
            failed = 1
            print(f"{path}: {text}: {error}", file=sys.stderr)
    print(f"{len(found)} expressions")
    return failed


if __name__ == "__main__":
    sys.exit(main())
