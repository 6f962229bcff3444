"""Protocol between the launcher and a stage's job.

The launcher sends the job's command line:

    python -m vagen.launch.job s3://bucket/runs/lake-1 rollout iteration=3

The job returns its outcome, one line of JSON at the end of its log:

    vagen-verdict: {"result": {"uri": "s3://…/0003/update", "sha256": "…", "metrics": {…}}}
    vagen-verdict: {"kind": "user", "message": "level 17 cannot be solved: choose another seed"}

Errors of a stage in a Ray cluster are classes by cause, which decides on retries.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from vagen.storage import StoreAway


class JobRefused(ValueError):
    """The stage rejected the user's input; a retry would not help."""


class JobFailed(RuntimeError):
    """The stage failed, or its job was stopped; an immediate retry would not help."""


class Lost(RuntimeError):
    """The infrastructure failed: a pod, a node, the head or the actor is gone.

    Commits are safe, and another attempt continues from there.
    """


CPU = "cpu"
"""Argument `cpu=1`: the run computes without GPUs; not passed to the stage."""
_NUMBERS = ("iteration", "start", "stop", CPU)
PREFIX = "vagen-verdict: "
FailureKind = Literal["user", "internal", "infrastructure", "store"]
EXIT_CODES: dict[FailureKind, int] = {"internal": 1, "user": 2, "infrastructure": 3, "store": 4}
"""Exit code of a job by kind of failure; 0 is success. A killed job has none of these."""
ERRORS: dict[FailureKind, type[Exception]] = {
    "internal": JobFailed,
    "user": JobRefused,
    "infrastructure": Lost,
    "store": StoreAway,
}


class StepOutcome(TypedDict, total=False):
    """Either `result`, or `kind` and `message`."""

    result: dict[str, Any]
    """The stage's result: `uri`, `sha256`, `metrics`."""
    kind: FailureKind
    """Kind of failure."""
    message: str
    """Error message for the user, with advice."""


def format_command(run: str, stage: str, arguments: Mapping[str, Any]) -> list[str]:
    """The command line of a stage's job."""
    words = [f"{key}={value}" for key, value in sorted(arguments.items())]
    return ["python", "-m", "vagen.launch.job", run, stage, *words]


def parse_command(words: Sequence[str]) -> tuple[str, str, dict[str, Any]]:
    """Parses run, stage and arguments from the words after `vagen.launch.job`."""
    run, stage, *pairs = words
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        arguments[key] = int(value) if key in _NUMBERS else value
    return run, stage, arguments


def format_verdict(verdict: StepOutcome) -> str:
    """The outcome as a line of the log."""
    return PREFIX + json.dumps(verdict)


def parse_verdict(line: str) -> StepOutcome | None:
    """The outcome in a line; None for other or truncated lines."""
    if not line.startswith(PREFIX):
        return None
    try:
        return json.loads(line.removeprefix(PREFIX))
    except json.JSONDecodeError:
        return None
