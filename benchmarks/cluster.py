"""What Kubernetes and Kubeflow add to a training's own work, measured on a run of a real cluster.

    python -m benchmarks.cluster s3://vagen/runs/lake-1 --workflow vagen-train-x7k2p --what "..."

Needs kubectl's context, the pods of the pipeline run (Kubeflow keeps them for a while), and the
store as `vagen` reaches it. A step's overhead is the time from the end of the step before it to its
own end, less what its stage took by the run's events: driver pod, scheduling, start, loading, and
what is told to Kubeflow afterwards.
"""

import argparse
import json
import subprocess
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.machine import describe_machine
from vagen.run.layout import split_uri
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
    parser.add_argument("--entry", default="staged", help="name of the result")
    parser.add_argument("--what", required=True, help="what ran, what beside it, and the load")
    options = parser.parse_args()
    steps, drivers = pods(options.workflow, options.namespace)
    work = stage_seconds(options.run)
    rows: list[dict[str, Any]] = []
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
    loop = [row for row in rows if row["step"] in IN_LOOP]
    into = [row["between"] for row in loop if row["step"] in ("rollout", "train")]
    within = [row["between"] for row in loop if row["step"] not in ("rollout", "train")]
    measured = {
        "what": options.what,
        "date": datetime.fromtimestamp(steps[0].started, UTC).date().isoformat(),
        "machine": {key: describe_machine()[key] for key in ("cpu", "cores", "system")},
        "workflow_object": workflow_object(options.workflow, options.namespace),
        "pods_of_kubeflow_itself": drivers,
        "whole_s": round(steps[-1].ended - steps[0].started),
        "median_s": {
            "into_a_stretch": median(into) if into else None,
            "between_steps_of_a_stretch": median(within) if within else None,
            "overhead_of_a_step": median(row["overhead"] for row in loop) if loop else None,
        },
        "steps": rows,
    }
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    RESULT.write_text(json.dumps(known | {options.entry: measured}, indent=2) + "\n")
    print(json.dumps(measured, indent=2))


def pods(workflow: str, namespace: str) -> tuple[list[Step], int]:
    """The steps' containers in the order of their starts, and how many pods were Kubeflow's own."""
    selector = f"workflows.argoproj.io/workflow={workflow}"
    found, others = [], 0
    for pod in json.loads(get(namespace, "pods", "--selector", selector))["items"]:
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


def workflow_object(workflow: str, namespace: str) -> dict[str, Any]:
    """Its size, of which Kubernetes takes 1 MiB; Argo compresses what would be more."""
    found = json.loads(get(namespace, "workflow", workflow))
    size = len(json.dumps(found, separators=(",", ":")))
    return {"bytes": size, "compressed": "compressedNodes" in found["status"]}


def get(namespace: str, *words: str) -> bytes:
    """What `kubectl get` answers, as JSON."""
    command = ["kubectl", "--namespace", namespace, "get", *words, "--output", "json"]
    return subprocess.run(command, capture_output=True, check=True).stdout


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
