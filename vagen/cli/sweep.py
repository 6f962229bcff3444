"""`vagen sweep`, and `vagen run --seeds`: many trainings, one folder, one page."""

from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

from vagen.cli.common import command
from vagen.cli.main import DEFAULT_EXPERIMENT, FAILED, UsageError
from vagen.cli.submit import NAME_LENGTH
from vagen.compare import ComparisonError
from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.errors import validate
from vagen.experiment.checks_infra import check_infra
from vagen.experiment.load import find_file, load_infra
from vagen.stages import interrupts
from vagen.storage import sole_writer
from vagen.sweep.folder import COMPARISON, compare_trials, open_folder, parent_run, write_results
from vagen.sweep.processes import TrainingProcesses
from vagen.sweep.queue import Trainings, conduct
from vagen.sweep.schema import SweepConfig, check_sweep, load_sweep, short_keys
from vagen.sweep.study import Study, Trial
from vagen.tracking import Tracker, TrackingError, default_uri
from vagen.tracking.tracker import EndStatus


def sweep(options: Namespace) -> int:
    """Runs or resumes a sweep."""
    if options.experiment is None:
        raise UsageError("which sweep: give its YAML file, or its name under experiments/sweeps/")
    config = load_sweep(options.experiment, name=options.name, overrides=options.overrides)
    return _sweep(config, load_infra(options.infra, options.infra_overrides), options)


def run_seeds(options: Namespace) -> int:
    """Trains an experiment with several seeds."""
    experiment = options.experiment or DEFAULT_EXPERIMENT
    tree = {
        "name": options.name or f"{find_file(experiment, 'experiments').stem}-seeds",
        "experiment": experiment,
        "overrides": options.overrides,
        "parameters": {"seed": options.seeds},
    }
    config = validate(SweepConfig, tree)
    return _sweep(config, load_infra(options.infra, options.infra_overrides), options)


def _sweep(config: SweepConfig, infra: InfraConfig, options: Namespace) -> int:
    if options.jobs < 1:
        raise UsageError(f"--jobs is {options.jobs}: at least one trial at a time")
    if infra.kubernetes and len(config.name) > NAME_LENGTH - len("-000"):
        raise UsageError(f"the sweep's name has more than {NAME_LENGTH - 4} letters: give --name")
    digest = check_sweep(config, partial(_check, infra))
    here = infra if infra.kubernetes is None else InfraConfig()
    folder = Path(here.output_dir).absolute() / config.name
    folder.mkdir(parents=True, exist_ok=True)
    parent = None
    with sole_writer(folder, patience=0.0), interrupts.handle_interrupts():
        open_folder(folder, config, digest)
        try:
            study = Study(folder, config, jobs=options.jobs)
            if options.rerun:
                study.retry_failed()
            parent = _parent(folder, config, infra)
            trainings = _trainings(folder, config, infra, parent, options)
            conduct(config, study, trainings, jobs=options.jobs, say=_say)
        except BaseException:
            _finish(parent, "KILLED")
            _say(f"stopped; go on with: {options.line}")
            raise
        return _close(folder, config, study.trials, parent)


def _check(infra: InfraConfig, experiment: ExperimentConfig) -> None:
    check_infra(experiment, infra)
    if infra.kubernetes:
        from pipelines.sweep import check_pipeline

        check_pipeline(experiment, infra)


def _parent(folder: Path, config: SweepConfig, infra: InfraConfig) -> Tracker | None:
    """The MLflow run of the sweep; None if it is a cluster's that does not answer from here."""
    try:
        return parent_run(folder, config, infra, config.load(next(config.points())))
    except TrackingError as error:
        if infra.kubernetes is None:
            raise
        _say(
            f"the trials have no parent run in MLflow: {error}; to give them one, forward its port "
            "and set MLFLOW_TRACKING_URI"
        )
        return None


def _trainings(
    folder: Path,
    config: SweepConfig,
    infra: InfraConfig,
    parent: Tracker | None,
    options: Namespace,
) -> Trainings:
    infra = infra.model_copy(update={"mlflow_parent_run": parent.run_id if parent else None})
    if infra.kubernetes:
        from pipelines.submit import Kubeflow
        from pipelines.sweep import Pipelines

        kubeflow = Kubeflow(options.host, options.kfp_namespace)
        return Pipelines(folder, config.name, infra, kubeflow, options.image)
    tracking = infra.mlflow_tracking_uri or default_uri(folder.parent)
    infra = infra.model_copy(update={"mlflow_tracking_uri": tracking})
    return TrainingProcesses(folder, infra, jobs=options.jobs)


def _close(folder: Path, config: SweepConfig, trials: list[Trial], parent: Tracker | None) -> int:
    results = write_results(folder, trials)
    done = [trial for trial in trials if trial.state == "complete"]
    _print_table(trials, folder)
    if done:
        try:
            for page in compare_trials(folder, config, trials):
                _say(f"{page}  ({command('view', page.parent)})")
        except ComparisonError as error:
            _say(f"no page compares them: {error}")
    if parent is not None:
        parent.log_artifact(results)
        if (folder / COMPARISON).exists():
            parent.log_artifact(folder / COMPARISON)
    _finish(parent, "FINISHED" if done else "FAILED")
    return 0 if done else FAILED


def _finish(parent: Tracker | None, status: EndStatus) -> None:
    if parent is not None:
        parent.finish(status)


def _print_table(trials: list[Trial], folder: Path) -> None:
    """The trials, the best first."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=folder.name, title_justify="left")
    keys = short_keys(trials[0].parameters)
    for name in ("trial", *keys.values(), "success", "ended"):
        table.add_column(name, overflow="fold")
    for trial in sorted(trials, key=_worth, reverse=True):
        success = "" if trial.value is None else f"{trial.value:.3f}"
        values = [str(trial.parameters[key]) for key in keys]
        ended = {"complete": "", "pruned": "early", "fail": trial.reason}[trial.state]
        table.add_row(f"{trial.number:03d}", *values, success, ended)
    Console().print(table)


def _worth(trial: Trial) -> tuple[Any, ...]:
    return trial.state == "complete", trial.state == "pruned", trial.value or 0.0, -trial.number


def _say(text: str) -> None:
    print(text, flush=True)
