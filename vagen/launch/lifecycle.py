"""The first and the last step of a pipeline's run: creates and closes it."""

from vagen.config import ExperimentConfig, config_digest
from vagen.config.base import ConfigError
from vagen.config.yaml_io import parse_yaml
from vagen.experiment.load import load_experiment, load_infra
from vagen.launch.step import await_store, run_stage, set_up_process
from vagen.run import layout
from vagen.run.layout import is_uri, run_name, split_uri
from vagen.run.run import Run
from vagen.stages.tracking import tracker_of
from vagen.storage import open_store


def begin(run: str, *, experiment: str, infra: str) -> None:
    """Creates the run if it does not exist, and opens its MLflow run.

    Args:
        run: The run: its folder, which exists, or its URI in a store.
        experiment: Text of the experiment file; empty if the run exists.
        infra: Text of the infra file; empty if the run exists.

    Raises:
        ConfigError: The run does not exist and has no files, or it is a different one.
        TrackingError: MLflow cannot be used.
    """
    set_up_process()
    found = await_store(lambda: _found(run))
    if found is None:
        found = await_store(lambda: _made(run, experiment, infra))
    elif experiment and config_digest(_experiment(experiment)) != found.config_digest:
        raise ConfigError(
            f"{run} exists with another experiment: choose another name, or submit it with its own "
            "(--clone)"
        )
    await_store(lambda: _open_tracking(found))


def release(run: str, *, after: str) -> None:
    """Deletes the run's Ray cluster, if any, after its final evaluation.

    Later steps need no GPUs, and on a small cluster their pods would not fit.

    Args:
        run: The run: its folder, or its URI in a store.
        after: Name of the finished evaluation.
    """
    if after != layout.FINAL:
        return
    if namespace := await_store(lambda: Run.open(run)).infra.ray_namespace:
        _tear_down(run, namespace)


def end(run: str, *, namespace: str, state: str, message: str) -> None:
    """Deletes the run's Ray cluster, with logs in the store, and finalizes the run.

    Args:
        run: The run: its folder, or its URI in a store.
        namespace: Namespace of its Ray cluster, which is deleted even if the store does not
            respond; empty if it has none.
        state: Final state of the pipeline, in Kubeflow's terms.
        message: Error message of a failed pipeline.
    """
    set_up_process()
    try:
        if namespace:
            _tear_down(run, namespace)
    finally:
        if await_store(lambda: _found(run)) is None:
            print(f"{run} was never made: there is nothing to close", flush=True)
        else:
            run_stage(run, "finalize", state=state, message=message)


def _tear_down(run: str, namespace: str) -> None:
    # Imports Ray, which steps of the local engine do not need.
    from vagen.launch.on_cluster import tear_down

    tear_down(run, namespace)


def _found(run: str) -> Run | None:
    """The run if it exists."""
    if is_uri(run):
        root, name = split_uri(run)
        if open_store(root).read_file(f"{name}/{layout.EXPERIMENT.as_posix()}") is None:
            return None
    return Run.open(run)


def _open_tracking(run: Run) -> None:
    with run.session():
        if run.mirror is not None:
            run.mirror.begin()
        tracker_of(run).ready()
        if run.mirror is not None:
            run.mirror.push_files()


def _made(run: str, experiment: str, infra: str) -> Run:
    """Creates a run from the texts of its files."""
    if not experiment:
        raise ConfigError(f"there is no run {run}, and no experiment to make it from")
    where = load_infra(parse_yaml(infra, "infra"))
    if where.store is None or f"{where.store.rstrip('/')}/{run_name(run)}" != run:
        raise ConfigError(f"infra.store is {where.store!r}, but the run's URI is {run}")
    return Run.create(_experiment(experiment), where, name=run_name(run))


def _experiment(text: str) -> ExperimentConfig:
    return load_experiment(parse_yaml(text, "experiment"))
