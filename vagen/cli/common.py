"""Shared by the commands: reads configurations and finds runs."""

import os
import shlex
import shutil
import sys
from argparse import Namespace
from pathlib import Path

from vagen import progress
from vagen.cli.main import DEFAULT_EXPERIMENT
from vagen.config import ConfigError, ExperimentConfig, InfraConfig
from vagen.config.errors import unknown_name
from vagen.config.schema import is_name
from vagen.experiment.checks_infra import check_infra
from vagen.experiment.load import load_experiment, load_infra
from vagen.run import layout
from vagen.run.layout import is_uri
from vagen.run.run import Run


def command(name: str, target: Path) -> str:
    """A command line that can be pasted: `vagen view RUN`, by its path where no shell finds it.

    A run is named where its name suffices.
    """
    own, found = Path(sys.argv[0]), shutil.which("vagen")
    by_path = own.name == "vagen" and not (found and own.exists() and own.samefile(found))
    beside = (Path(InfraConfig().output_dir) / target.name).absolute()
    words = [name, target.name if target.absolute() == beside else str(target)]
    return shlex.join([os.path.relpath(own) if by_path else "vagen", *words])


class RunNotFoundError(ValueError):
    """There is no run, evaluation or report at the given place."""


def load_configs(options: Namespace) -> tuple[ExperimentConfig, InfraConfig]:
    """The experiment and the infra of a command line.

    Raises:
        ConfigError: If either cannot be used, or not both together.
    """
    experiment = load_experiment(options.experiment or DEFAULT_EXPERIMENT, options.overrides)
    infra = load_infra(options.infra, options.infra_overrides)
    check_infra(experiment, infra)
    return experiment, infra


def stored_configs(run: str, options: Namespace) -> tuple[ExperimentConfig, InfraConfig]:
    """The experiment and the infra of a run, with a command line's overrides.

    Args:
        run: The run's folder, its name under the output folder, or its URI in a store.
        options: Options of the command line.

    Raises:
        ConfigError: If there is no such run, or it cannot be used with the overrides.
    """
    folder = find_run(run)
    if options.experiment:
        raise ConfigError(f"the experiment is that of {run}: leave out {options.experiment}")
    experiment = load_experiment(folder / layout.EXPERIMENT, options.overrides)
    infra = load_infra(options.infra or folder / layout.INFRA, options.infra_overrides)
    check_infra(experiment, infra)
    return experiment, infra


def is_run(path: Path) -> bool:
    """Whether a folder is a run's."""
    return (path / layout.EXPERIMENT).is_file()


def find_run(name: str) -> Path:
    """The folder of a run, given as a path, as a name (or `latest`) under the output folder, or as
    a URI in a store: then a folder is made, with the manifests of all that is there.

    Raises:
        RunNotFoundError: If there is none; names the nearest.
        ConfigError: If there is none in the store.
        StorageError: If the store cannot be used.
    """
    if is_uri(name):
        found = Run.open(name)
        pull(found)
        return found.path
    if (found := _run_here(name)) is not None:
        return found
    path, outputs = Path(name), Path(InfraConfig().output_dir)
    if path.exists():
        raise RunNotFoundError(f"{path} is not a run's folder: it has no {layout.EXPERIMENT}")
    known = [found.name for found in outputs.glob("*") if is_run(found)]
    raise RunNotFoundError(f"{unknown_name('run', name, known)} (in {outputs}/)")


def run_named(model: str) -> Path | None:
    """The run that `eval` was given, or None if it was given a model."""
    if "://" in model:
        return find_run(model)
    return _run_here(model)


def model_path(spec: str) -> str:
    """Path of a specification's weights; a run's are its newest policy."""
    run_dir = run_named(spec)
    return spec if run_dir is None else str(Run.open(run_dir).newest_policy())


def _run_here(name: str) -> Path | None:
    """The folder of a run of this machine, given as a path, or as a name; also of a sweep's."""
    outputs = Path(InfraConfig().output_dir)
    trials = outputs.glob(f"*/{layout.RUNS}/{name}") if is_name(name) else ()
    found = (path for path in (Path(name), outputs / name, *trials) if is_run(path))
    return next((path.resolve() for path in found), None)


def pull(run: Run) -> None:
    """Downloads the run's folder from its store, if it has one, and restores the terminal.

    Raises:
        StorageError: If the store cannot be used.
    """
    try:
        if run.mirror is not None:
            run.mirror.pull()
    finally:
        progress.close()


def new_folder(path: Path) -> Path:
    """The folder that a result goes to.

    Raises:
        ConfigError: If there is something already: a result is never mixed with another's.
    """
    if path.exists():
        raise ConfigError(f"{path} exists already: choose another folder")
    return path


def run_of(path: Path) -> Path:
    """The run that a folder inside it belongs to.

    Raises:
        RunNotFoundError: If it lies in none.
    """
    for parent in (path.resolve(), *path.resolve().parents):
        if is_run(parent):
            return parent
    raise RunNotFoundError(f"{path} does not lie in a run's folder")
