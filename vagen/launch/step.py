"""Functions for the steps of a pipeline. Every step imports this, so it imports nothing heavy."""

import atexit
import gc
import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from vagen.config.base import ConfigError
from vagen.extras import advice
from vagen.launch.protocol import JobFailed
from vagen.run import layout
from vagen.run.folder import result
from vagen.run.layout import is_uri
from vagen.run.run import Run
from vagen.steps import STEPS
from vagen.storage import StoreAway

T = TypeVar("T")

TRAIN = "train"
"""Pseudo stage: whole iterations from `start` to before `stop`."""
DURING_TRAINING = "measure"
"""Stage that may run during a training, since no other process writes its folder."""
STORE_AWAY_SECONDS = 1800.0
"""Seconds that a step waits for an unresponsive store."""
OWN_POD = frozenset({"build", "register", "measure", "finalize", "evaluate_model", "deploy"})
"""Stages and steps that run in their own pod on Kubernetes, without a Ray cluster."""


def run_stage(run: str, stage: str, **arguments: Any) -> dict[str, Any]:
    """Executes a stage: on Kubernetes with `infra.engine=verl` in the run's Ray cluster.

    Args:
        run: The run: its folder, or its URI in a store.
        stage: Name of the stage, or `train` for several iterations.
        arguments: JSON-serialisable arguments of the stage.

    Returns:
        `uri`, `sha256` and `metrics` of the stage's commit.

    Raises:
        ValueError: An error that the user can fix.
        RuntimeError: The stage or the cluster failed.
        StoreAway: The run's store has not responded for half an hour.
    """
    set_up_process()
    return await_store(lambda: _run_stage(run, stage, arguments))


def set_up_process() -> None:
    """Prepares the process of a step for its end.

    An error that a user can fix ends it without a traceback, which would hide the message.
    """
    # A garbage collection at exit takes two seconds of CPU once torch is imported.
    atexit.register(gc.freeze)

    def print_error(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if isinstance(error, ValueError | JobFailed) and kind.__module__.startswith("vagen."):
            print(error, file=sys.stderr)
        elif missing := advice(error):
            print(missing, file=sys.stderr)
        else:
            sys.__excepthook__(kind, error, trace)

    sys.excepthook = print_error


def _run_stage(run: str, stage: str, arguments: dict[str, Any]) -> dict[str, Any]:
    opened = Run.open(run)
    if (done := _finished(opened, stage, arguments)) is not None:
        return done
    _check_order(opened, stage, arguments)
    if is_uri(run) and opened.infra.has_ray_cluster and stage not in OWN_POD:
        from vagen.launch.on_cluster import run_on_cluster

        return run_on_cluster(run, opened.infra, stage, arguments)
    return run_in_process(run, stage, **arguments)


def run_in_process(run: str, stage: str, **arguments: Any) -> dict[str, Any]:
    """Executes one stage of a run and then frees all resources.

    Args:
        run: The run: its folder, or its URI in a store.
        stage: One of `STEPS`, or `TRAIN`.
        arguments: Arguments of the stage.

    Returns:
        `uri`, `sha256`, `metrics`.

    Raises:
        ValueError: An error that the user can fix.
        StageFailed: The stage failed.
    """
    opened = Run.open(run)
    with opened.release_resources() if stage == DURING_TRAINING else opened.session():
        return perform(opened, stage, **arguments)


def perform(run: Run, stage: str, **arguments: Any) -> dict[str, Any]:
    """Executes one stage of a run that this process has opened; see `run_in_process`."""
    # Both import torch, which a step of a Ray cluster does not need.
    if stage == TRAIN:
        from vagen.train import iterate

        iterate(run, **arguments)
        return run.located(result(run.step(run.finished_iterations - 1, "update")))
    if stage not in STEPS:
        raise ConfigError(f"no stage is named {stage!r}: there are {', '.join(STEPS)}, {TRAIN}")
    from vagen.stages.execute import execute, stage_named

    return execute(run, stage_named(stage), **arguments)


def validate(run: str, iteration: int) -> None:
    """Plays the validation levels with an iteration's policy if that is due."""
    if await_store(lambda: Run.open(run)).experiment.trainer.validates_after(iteration):
        run_stage(run, "evaluate", name=layout.validation(iteration + 1), split="val")


def await_store(action: Callable[[], T]) -> T:
    """The result of an action, retried while the run's store does not respond.

    Raises:
        StoreAway: The store has not responded for half an hour.
    """
    end, pause = time.monotonic() + STORE_AWAY_SECONDS, 5.0
    while True:
        try:
            return action()
        except StoreAway as error:
            if time.monotonic() + pause > end:
                raise
            print(f"{error}\ntried again in {pause:.0f} s", flush=True)
        time.sleep(pause)
        pause = min(2 * pause, 60.0)


def _finished(run: Run, stage: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a committed stage, which needs neither torch nor a Ray cluster."""
    if stage == TRAIN:
        stage, arguments = "update", {"iteration": arguments["stop"] - 1}
    if run.mirror is not None:
        run.mirror.find(run.folder(stage, **arguments))
    return run.finished(stage, **arguments)


def _check_order(run: Run, stage: str, arguments: dict[str, Any]) -> None:
    """Rejects iterations after a failed one: Kubeflow starts every item of its loop, and these must
    not hold a Ray cluster until the run is closed.
    """
    iteration = arguments.get("iteration" if stage == "rollout" else "start", 0)
    before = {"iteration": iteration - 1}
    if not iteration or stage not in ("rollout", TRAIN) or _finished(run, "update", before):
        return
    if run.mirror is not None:
        run.mirror.pull()  # an earlier iteration may have ended the training
    if run.finished("update", **before) is None:
        if run.mirror is not None and run.infra.ray_namespace:
            from vagen.launch.on_cluster import tear_down

            tear_down(run.mirror.uri, run.infra.ray_namespace)
        raise ConfigError(
            f"iteration {iteration} does not begin, because iteration {iteration - 1} has not "
            "ended: see what its step says; submitted again, the run goes on from there"
        )


def finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Finite metrics, the only ones that a pipeline backend stores."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def hand_on(result: Mapping[str, Any], artifact: Any, metrics: Any) -> None:
    """Reports a stage's result to Kubeflow: URI, digest and metrics.

    The artifact itself is a pointer: batches and checkpoints stay in the run.

    Args:
        result: Result of `run_stage`.
        artifact: Output artifact of the step.
        metrics: Metrics artifact of the step.
    """
    pointer = {"location": result["uri"], "sha256": result["sha256"]}
    artifact.metadata.update(pointer)
    Path(artifact.path).write_text(json.dumps(pointer))
    metrics.metadata.update(finite(result["metrics"]))


def save_report(run: str, evaluation: str, path: str) -> None:
    """Copies the report of an evaluation, one HTML file, to the path that Kubeflow displays."""
    opened = Run.open(run)
    if opened.mirror is not None:
        opened.mirror.pull()
    shutil.copyfile(opened.fetch(opened.evaluation(evaluation)) / layout.REPORT, path)


def evaluate_model(
    evaluation: str, infra: str, uri: str, model: str, path: str
) -> dict[str, float]:
    """Evaluates a model, or creates the table of all; see `vagen.evaluation.in_store`.

    Returns:
        Success of each row with a result.
    """
    from vagen.evaluation import PAGE
    from vagen.evaluation.in_store import evaluate_in_store

    set_up_process()
    found = await_store(lambda: evaluate_in_store(evaluation, infra, uri, model))
    shutil.copyfile(found.folder / PAGE, path)
    return finite({f"{line.environment}/{line.model}": line.success for line in found.lines})


def deploy_agent(run: str, name: str) -> dict[str, Any]:
    """Deploys the agent of a registered run; see `vagen.deploy.deploy`.

    Args:
        run: URI of the run.
        name: Name of the evaluation of the deployed agent.

    Returns:
        `text`, the result in words, and `metrics`.

    Raises:
        ConfigError: The infra of the run has no section `kubernetes.deploy`.
        ClusterError: The agent does not start.
    """
    from vagen.cluster import connect
    from vagen.deploy import deploy

    set_up_process()
    opened = await_store(lambda: Run.open(run))
    if opened.mirror is not None:
        opened.mirror.pull()
    where = opened.infra.kubernetes
    if where is None or where.deploy is None:
        raise ConfigError("the run's infra has no section `kubernetes.deploy`: add `deploy: {}`")
    options = where.deploy
    found = deploy(
        opened,
        connect(where.namespace),
        opened.infra,
        name,
        count=options.count,
        share=options.share,
        plain=options.plain,
    )
    print(found.text, flush=True)
    metrics = {"deployed": float(found.verdict.passed), "success": found.verdict.success}
    return {"text": found.text, "metrics": metrics}
