"""Names of a run, and of all files and folders in its folder.

config/experiment.yaml, infra.yaml   initial configuration
config/extensions.jsonl              later extensions (`Run.extend`)
levels/, warm_start/                 before the iterations
iterations/0007/rollout/             and judge/, advantage/, update/
checkpoints/0007/                    weights and optimizer after an iteration's update
evaluations/warm_start/              and final/, iteration-0010/, ...
registration/
summary.json                         once both evaluations exist
report/index.html, curves.png        the run's page (`vagen view`)
events.jsonl, run.log                events of stages, and output
attempt.json                         the current writer (`vagen.storage.writer`)
tracking_pending.jsonl               records not yet sent to MLflow (`vagen.tracking.tracker`)
tensorboard/, wandb/                 files of `infra.trackers` (`vagen.tracking.extra`)

Imports next to nothing, so that every step of a pipeline can load it.
"""

from pathlib import Path

EXPERIMENT = Path("config/experiment.yaml")
INFRA = Path("config/infra.yaml")
EXTENSIONS = Path("config/extensions.jsonl")

LEVELS, REGISTRATION = "levels", "registration"
ITERATIONS, CHECKPOINTS, EVALUATIONS = "iterations", "checkpoints", "evaluations"
RERUNS = "reruns"
PROFILES = "profiles"
"""Traces of torch's profiler (`infra.profile_iteration`)."""
SUPERSEDED = "superseded"
"""Local folders that were replaced when another attempt had continued the run."""

FINAL = "final"
"""The evaluation after the last iteration; the first one is `warm_start`."""

KEEP_CHECKPOINTS = 2
"""Number of latest checkpoints to keep."""

EVENTS = "events.jsonl"
LOG = "run.log"
"""Output of libraries while the terminal shows the progress."""
SUMMARY = "summary.json"
CURVES = Path("report/curves.png")
OVERVIEW = Path("report/index.html")
LATEST = "latest"
"""Link to the newest run, next to the runs."""

RUNS = "runs"
"""Folder in a sweep's folder for the runs of its trials."""

MLFLOW_RUN = "mlflow_run_id"
JUDGE_ANSWERS = "judge_answers.jsonl"
"""Answers of the judge's language model in an uncommitted step."""

CARRIED = "carried.json"
"""File of a rollout with episodes to continue in the next one (`vagen.rollout.carried`)."""
CURRICULUM = "curriculum.json"
"""File of a rollout with level statistics for the next one (`vagen.rollout.curriculum`)."""
RESULTS, REPORT = "results.json", "report.html"
"""Files of an evaluation: success per level, and a page with every episode."""
POLICY = "policy"
"""Model directory of a checkpoint, and of the warm start."""


def iteration(number: int) -> Path:
    """Folder of an iteration, from 0."""
    return Path(ITERATIONS, f"{number:04d}")


def checkpoint(number: int) -> Path:
    """Folder of the checkpoint after an iteration."""
    return Path(CHECKPOINTS, f"{number:04d}")


def validation(iterations: int) -> str:
    """Name of the evaluation after this many iterations: `iteration-0010`."""
    return f"iteration-{iterations:04d}"


def validated_iteration(name: str) -> int | None:
    """Index of the last iteration before a validation: 9 for `iteration-0010`.

    None for other names.
    """
    word, _, number = name.partition("-")
    return int(number) - 1 if word == "iteration" and number.isdigit() and int(number) else None


def is_uri(run: str | Path) -> bool:
    """Whether the name of a run is a URI in a store."""
    return isinstance(run, str) and "://" in run


def split_uri(run: str) -> tuple[str, str]:
    """URI of the store and name of a run, from the run's URI."""
    store, _, name = run.rstrip("/").rpartition("/")
    return store, name


def run_name(run: str) -> str:
    """Name of a run: the last part of its URI."""
    return split_uri(run)[1]
