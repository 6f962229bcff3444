"""`vagen run`, `vagen resume`, `vagen compile`."""

import json
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vagen import progress, steps
from vagen.cli.common import command, find_run, load_configs, new_folder, pull, run_of
from vagen.cli.main import INTERRUPTED, UsageError
from vagen.config.schema import is_name
from vagen.run import layout
from vagen.run.run import LENGTH, Run
from vagen.stages import interrupts
from vagen.storage import InUse


def run(options: Namespace) -> int | None:
    """Trains from the start, with one seed or several, or executes one step."""
    if options.seeds:
        _check_seeds(options)
        from vagen.cli.sweep import run_seeds

        return run_seeds(options)
    if options.jobs != 1 or options.rerun:
        raise UsageError("--jobs and --rerun go with --seeds: several trainings")
    if options.batch or options.to:
        _rerun(options)
        return None
    if options.stage:
        _check_step(options)
    if options.of:
        _step(options, Run.open(find_run(options.of)))
        return None
    if options.name and not is_name(options.name):
        raise UsageError(
            f"--name is {options.name[:200]!r}; use at most 150 letters, digits, `-`, `_`"
        )
    experiment, infra = load_configs(options)
    if infra.kubernetes is not None:
        raise UsageError(
            "this infra is a Kubernetes cluster's: send the training there with `vagen submit`, or "
            "take another --infra"
        )
    from vagen.plan.parts import resolve_defaults
    from vagen.stages.checks import check_machine

    check_machine(experiment, infra)
    created = Run.create(experiment, resolve_defaults(experiment, infra), name=options.name)
    if options.stage:
        _step(options, created)
    else:
        _train(created, as_pipeline=options.pipeline)
    return None


def resume(options: Namespace) -> None:
    """Resumes a run from its commits."""
    found = Run.open(find_run(options.run))
    if found.infra.kubernetes is not None:
        raise UsageError(
            f"{found.name} is a run of a Kubernetes cluster: go on with it by `vagen submit "
            f"--clone {options.run} --name {found.name}`"
        )
    pull(found)
    found.check_config()
    if options.changes:
        found.extend(_steps(options.changes))
    if found.is_current(found.registration) and (found.path / layout.SUMMARY).exists():
        print(f"{found.name} is finished, there is nothing to do")
        show_summary(found.path)
        return
    try:
        _train(found, as_pipeline=options.pipeline)
    except InUse:
        if not options.changes:
            raise
        print(f"{found.name} is at work, and will be that long from its next iteration on")


def _steps(changes: list[str]) -> int:
    """The number of iterations that a resumed run shall have.

    Raises:
        UsageError: Something else is to be changed.
    """
    key, _, value = changes[-1].partition("=")
    if len(changes) > 1 or key != LENGTH or not value.isdigit():
        raise UsageError(
            f"a run that began can only be made longer, {LENGTH}=120, not {' '.join(changes)}; "
            "begin another with `vagen run`"
        )
    return int(value)


def compile_ir(options: Namespace) -> None:
    """Writes the pipeline of an experiment as Kubeflow's IR YAML."""
    _, infra = load_configs(options)
    from pipelines.compile import compile_training

    path = compile_training(Path(options.output), infra, image=options.image)
    print(f"{path}: {path.stat().st_size / 1024:.0f} KB")


def show_summary(run_dir: Path) -> None:
    """Prints what a finished run achieved."""
    from rich.console import Console

    summary = json.loads((run_dir / layout.SUMMARY).read_text())
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
    table.add_row("report", command("view", run_dir))
    return table


def _train(run: Run, *, as_pipeline: bool) -> None:
    with interrupts.handle_interrupts(), print_resume_hint(run):
        if _was_stopped_in_warm_start(run):
            print(f"{run.name} was stopped in its warm start, which begins again", file=sys.stderr)
        if as_pipeline:
            from pipelines.local import run_pipeline

            run_pipeline(run)
        else:
            from vagen.train import train

            with progress.output_to(run.path / layout.LOG):
                train(run)
    from vagen.stages.overview import write_pages

    write_pages(run)
    show_summary(run.path)


def _was_stopped_in_warm_start(run: Run) -> bool:
    """Whether a warm start has begun and is not committed."""
    began = any(
        event["event"] == "stage_started" and event["stage"] == "warm_start"
        for event in progress.read_events(run.events)
    )
    return began and not run.is_current(run.warm_start)


def _check_seeds(options: Namespace) -> None:
    """Rejects options that do not work with several seeds.

    Raises:
        UsageError: Says what.
    """
    given = {"--stage": options.stage, "--pipeline": options.pipeline, "--from": options.batch}
    if words := [option for option, value in given.items() if value]:
        raise UsageError(f"--seeds makes whole trainings: leave out {', '.join(words)}")


@contextmanager
def print_resume_hint(run: Run) -> Iterator[None]:
    """Prints after an interrupt how to resume the run."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        lost = " in the warm start, which will begin again" * _was_stopped_in_warm_start(run)
        print(f"stopped{lost}; to continue: {command('resume', run.path)}", file=sys.stderr)
        raise SystemExit(
            INTERRUPTED if isinstance(stop, KeyboardInterrupt) else stop.code
        ) from None


def _check_step(options: Namespace) -> None:
    """Rejects an ambiguous step.

    Raises:
        UsageError: Says which option is missing.
    """
    stage = options.stage
    if not options.of and stage != "build":
        raise UsageError(f"--stage {stage} needs its run: --of RUN, or --from BATCH")
    if stage in steps.ITERATION and options.iteration is None:
        raise UsageError(f"--stage {stage} needs its --iteration")
    if stage in steps.EVALUATIONS and not options.evaluation:
        raise UsageError(f"--stage {stage} needs its --evaluation, such as final")


def _step(options: Namespace, run: Run) -> None:
    """Executes one step of a run."""
    arguments: dict[str, Any] = {}
    if options.iteration is not None:
        arguments["iteration"] = options.iteration
    if options.evaluation:
        arguments |= {"name": options.evaluation, "split": options.split}
    from vagen.launch.step import run_in_process

    with interrupts.handle_interrupts(), progress.output_to(run.path / layout.LOG):
        produced = run_in_process(run.uri, options.stage, **arguments)
    _show_metrics(produced["metrics"], produced["uri"])


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
        else run_dir / layout.RERUNS / f"{options.stage}-{stamp}"
    )
    from vagen.stages.execute import rerun_stage

    try:
        metrics = rerun_stage(options.stage, run_dir, batch, out)["metrics"]
    finally:
        progress.close()
    _show_metrics(metrics, out)


def _show_metrics(metrics: dict[str, float], folder: Path | str) -> None:
    for name, value in metrics.items():
        print(f"{name}: {value:.6g}")
    print(folder)
