"""What results of benchmarks share: machine, header, a file that several of them write."""

import json
import os
import platform
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vagen.tracking import git_commit, package_versions


def describe_machine(**more: Any) -> dict[str, Any]:
    """Processor, cores, load, Python and system; `more` stands before the system's name."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        **more,
        "system": platform.platform(),
    }


def header(note: str) -> dict[str, Any]:
    """What a result begins with: day, commit, versions, and how the machine was used meanwhile."""
    commit = git_commit()
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit[0] if commit else None,
        "versions": package_versions(),
        "note": note,
    }


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Writes a result with a line for each list of plain values, such as a learning curve."""
    text = json.dumps(result, indent=1)
    lists = re.compile(r"\[\s+([^][{}]*?)\s+\]")
    path.write_text(lists.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n")


def write_verl_cpu(found: dict[str, Any], *place: str) -> None:
    """Prints a section of `results/verl-cpu.json` (its keys: `place`) and writes it there."""
    found = {**found, "machine": describe_machine()}
    print(json.dumps(found, indent=2))
    path = Path(__file__).parent / "results" / "verl-cpu.json"
    results = json.loads(path.read_text())
    inner = results["sections"]
    for key in place[:-1]:
        inner = inner.setdefault(key, {})
    inner[place[-1]] = found
    path.write_text(json.dumps(results, indent=2) + "\n")
