"""What Kubernetes and Kubeflow add to a training's own work, measured on a run of a real cluster.

    python -m benchmarks.cluster s3://vagen/runs/lake-1 --workflow vagen-train-x7k2p

Needs kubectl's context, the pods of the pipeline run (Kubeflow keeps them for a while), and the
store as `vagen` reaches it. A step's overhead is the time from the end of the step before it to its
own end, less what its stage took by the run's events: driver pod, scheduling, start, loading, and
what is told to Kubeflow afterwards.
"""

import argparse
import json
import subprocess
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.machine import describe_machine
from vagen.run.uris import split_uri
from vagen.storage import open_store

RESULT = Path(__file__).parent / "results" / "cluster.json"
IN_LOOP = ("rollout", "judge", "advantage", "update", "train")


class Step(NamedTuple):
    """A step's container, in seconds since 1970."""

    name: str
    started: float
    ended: float


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="its URI")
    parser.add_argument("--workflow", required=True, help="name of the Argo Workflow")
    parser.add_argument("--namespace", default="kubeflow")
    options = parser.parse_args()
    steps, drivers = pods(options.workflow, options.namespace)
    work = stage_seconds(options.run)
    rows = []
    for before, step in pairwise(steps):
        stage = work[step.name].pop(0) if work.get(step.name) else 0.0
        rows.append(
            {
                "step": step.name,
                "between": round(step.started - before.ended),
                "container": round(step.ended - step.started),
                "stage": round(stage, 1),
                "overhead": round(step.ended - before.ended - stage),
            }
        )
    inner = [row["overhead"] for row in rows if row["step"] in IN_LOOP]
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    known |= {
        "machine": describe_machine(),
        "pods_of_kubeflow_itself": drivers,
        "overhead_of_a_step_s": {"median": median(inner), "all": inner} if inner else None,
        "whole_s": round(steps[-1].ended - steps[0].started),
        "steps": rows,
    }
    RESULT.write_text(json.dumps(known, indent=2) + "\n")
    print(json.dumps(known, indent=2))


def pods(workflow: str, namespace: str) -> tuple[list[Step], int]:
    """The steps' containers in the order of their starts, and how many pods were Kubeflow's own."""
    words = ["kubectl", "--namespace", namespace, "get", "pods", "--output", "json"]
    selector = f"workflows.argoproj.io/workflow={workflow}"
    done = subprocess.run([*words, "--selector", selector], capture_output=True, check=True)
    found, others = [], 0
    for pod in json.loads(done.stdout)["items"]:
        name = pod["metadata"]["labels"].get("vagen.dev/step")
        if name is None:
            others += 1
            continue
        (status,) = (c for c in pod["status"]["containerStatuses"] if c["name"] == "main")
        ended = status["state"]["terminated"]
        step = Step(
            name.replace("-", "_"), seconds(ended["startedAt"]), seconds(ended["finishedAt"])
        )
        found.append(step)
    return sorted(found, key=lambda step: step.started), others


def stage_seconds(run: str) -> dict[str, list[float]]:
    """Durations of the run's stages by name, in order."""
    root, name = split_uri(run)
    found: dict[str, list[float]] = {}
    for line in (open_store(root).read_file(f"{name}/events.jsonl") or b"").splitlines():
        event: dict[str, Any] = json.loads(line)
        if event["event"] == "stage_finished":
            found.setdefault(event["stage"], []).append(event["seconds"])
    return found


def seconds(text: str) -> float:
    """Of Kubernetes' notation."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


if __name__ == "__main__":
    main()
