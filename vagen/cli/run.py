"""`vagen run`, `vagen resume`, `vagen compile`."""

import json
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from vagen.cli.common import find_run, load_configs, new_folder, pull, run_of
from vagen.cli.main import UsageError
from vagen.cli.model_files import check_model
from vagen.config.schema import is_name

SUMMARY_FILE = "summary.json"


def run(options: Namespace) -> None:
    """Trains from the start, or executes one step on a stored batch."""
    if options.stage or options.batch or options.to:
        _rerun(options)
        return
    if options.name and not is_name(options.name):
        raise UsageError(f"--name is {options.name!r}; use letters, digits, `-`, `_`")
    experiment, infra = load_configs(options)
    if infra.kubernetes is not None:
        raise UsageError(
            "this infra is a Kubernetes cluster's: send the training there with `vagen submit`, or "
            "take another --infra"
        )
    check_model(experiment.actor_rollout_ref.model.path)
    from pipelines.local import execute
    from vagen.stages.run import Run

    created = Run.create(experiment, infra, name=options.name)
    execute(created)
    show_summary(created.path)


def resume(options: Namespace) -> None:
    """Goes on with a run from what it committed."""
    path = find_run(options.run)
    from pipelines.local import execute
    from vagen.stages.run import Run

    run = Run.open(path)
    if run.infra.kubernetes is not None:
        raise UsageError(
            f"{run.name} is a run of a Kubernetes cluster: go on with it by `vagen submit --clone "
            f"{options.run} --name {run.name}`"
        )
    pull(run)
    execute(run)
    show_summary(path)


def compile_ir(options: Namespace) -> None:
    """Writes the pipeline of an experiment as Kubeflow's IR YAML."""
    experiment, infra = load_configs(options)
    from pipelines.compile import compile_training

    path = compile_training(Path(options.output), experiment, infra, image=options.image)
    print(f"{path}: {path.stat().st_size / 1024:.0f} KB")


def show_summary(run_dir: Path) -> None:
    """Prints what a finished run achieved."""
    from rich.console import Console

    summary = json.loads((run_dir / SUMMARY_FILE).read_text())
    Console().print(summary_table(summary, run_dir))


def summary_table(summary: dict[str, Any], run_dir: Path) -> Any:
    """A `rich` table of `summary.json`."""
    from rich.table import Table

    def interval(part: dict[str, Any], value: str, sign: str = "") -> str:
        low, high = part["ci95"] or (float("nan"), float("nan"))
        return f"{part[value]:{sign}.3f}  [{low:{sign}.3f}, {high:{sign}.3f}]"

    table = Table(show_header=False, title=run_dir.name, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("levels", f"{summary['levels']} held-out")
    table.add_row("success, warm start", interval(summary["warm_start"], "success"))
    table.add_row("success, final", interval(summary["final"], "success"))
    table.add_row("paired gain", interval(summary["paired_gain"], "gain", "+"))
    seconds = summary["seconds"]["total"]
    table.add_row("iterations", str(summary["iterations"]))
    if summary.get("stopped_early"):
        table.add_row("stopped early", summary["stopped_early"])
    table.add_row("time", f"{int(seconds) // 60} min {int(seconds) % 60} s")
    alias = f", now {summary['alias']}" if summary.get("alias") else ""
    table.add_row("model", f"{summary.get('model_uri') or 'not registered'}{alias}")
    table.add_row("folder", str(run_dir))
    table.add_row("report", f"vagen view {run_dir.name}")
    return table


def _rerun(options: Namespace) -> None:
    """Executes one step on a stored batch.

    Raises:
        UsageError: If the arguments do not say which, or say too much.
        RunNotFoundError: If the batch belongs to no run.
    """
    if not (options.stage and options.batch):
        raise UsageError("one step needs both --stage and --from; --to goes with them")
    if options.words or options.infra or options.name:
        raise UsageError("one step uses its run's own configuration; leave out the other words")
    batch = Path(options.batch)
    run_dir = run_of(batch)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    out = (
        new_folder(Path(options.to))
        if options.to
        else run_dir / "reruns" / f"{options.stage}-{stamp}"
    )
    from vagen.stages import rerun_stage
    from vagen.stages.progress import close

    try:
        metrics = rerun_stage(options.stage, run_dir, batch, out)["metrics"]
    finally:
        close()
    for name, value in metrics.items():
        print(f"{name}: {value:.6g}")
    print(out)
