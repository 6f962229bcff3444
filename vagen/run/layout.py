"""What a run's folder holds: the name of every file and folder, once.

    config/experiment.yaml, infra.yaml   what it was started with
    config/extensions.jsonl              what made it longer since (`vagen.run.extension`)
    levels/, warm_start/                 before the iterations
    iterations/0007/rollout/             and judge/, advantage/, update/
    checkpoints/0007/                    weights and optimizer after an iteration's update
    evaluations/warm_start/              and final/, iteration-0010/, ...
    registration/
    summary.json                         when both evaluations are there
    report/index.html, curves.png        the run's page (`vagen view`)
    events.jsonl, run.log                what ran when, and what was printed
    attempt.json                         who may write (named in `vagen.storage.writer`)
    tracking_pending.jsonl               what MLflow has not taken yet (`vagen.tracking.spool`)
    tensorboard/, wandb/                 of `infra.trackers` (`vagen.tracking.extra`)

Imports nothing, so that every step of a pipeline may load it.
"""

from pathlib import Path

EXPERIMENT = Path("config/experiment.yaml")
INFRA = Path("config/infra.yaml")
EXTENSIONS = Path("config/extensions.jsonl")

LEVELS, WARM_START, REGISTRATION = "levels", "warm_start", "registration"
ITERATIONS, CHECKPOINTS, EVALUATIONS = "iterations", "checkpoints", "evaluations"
RERUNS = "reruns"
PROFILES = "profiles"
"""Traces of torch's profiler (`infra.profile_iteration`)."""
SUPERSEDED = "superseded"
"""What this folder had and the store did not, when another attempt had gone on."""

ITERATION_STAGES = ("rollout", "judge", "advantage", "update")
"""Stages of one iteration, in order."""
EVALUATION_STAGES = ("evaluate", "measure")
STAGES = ("build", "warm_start", *ITERATION_STAGES, *EVALUATION_STAGES, "register", "finalize")
FINAL = "final"
"""The evaluation after the last iteration; that before the first is `WARM_START`."""

KEEP_CHECKPOINTS = 2
"""Latest checkpoints kept; older ones are deleted."""

EVENTS = "events.jsonl"
LOG = "run.log"
"""What libraries print while the terminal shows the progress."""
SUMMARY = "summary.json"
CURVES = Path("report/curves.png")
OVERVIEW = Path("report/index.html")
LATEST = "latest"
"""Link beside the runs, to the newest."""

RUNS = "runs"
"""Folder of a sweep's folder: the runs of its trials."""

MLFLOW_RUN = "mlflow_run_id"
JUDGE_ANSWERS = "judge_answers.jsonl"
"""What the judge's language model has answered in a step that is not committed."""

CARRIED = "carried.json"
"""File of a rollout: episodes that the next one carries on (`vagen.rollout.carried`)."""
CURRICULUM = "curriculum.json"
"""File of a rollout: what the next one draws its levels by (`vagen.stages.curriculum`)."""
RESULTS, REPORT = "results.json", "report.html"
"""Files of an evaluation: success per level, and every episode as a page."""
POLICY = "policy"
"""Model directory of a checkpoint, and of the warm start."""


def iteration(number: int) -> Path:
    """Folder of an iteration, from 0."""
    return Path(ITERATIONS, f"{number:04d}")


def checkpoint(number: int) -> Path:
    """Folder of the checkpoint after an iteration."""
    return Path(CHECKPOINTS, f"{number:04d}")


def validation(iterations: int) -> str:
    """Name of the evaluation after so many iterations: `iteration-0010`."""
    return f"iteration-{iterations:04d}"


def validated_iteration(name: str) -> int | None:
    """The iteration whose update left the policy of a validation: 9 of `iteration-0010`.

    None for any other name.
    """
    word, _, number = name.partition("-")
    return int(number) - 1 if word == "iteration" and number.isdigit() and int(number) else None
