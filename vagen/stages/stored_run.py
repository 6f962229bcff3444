"""The two ends of a run in a store: made from two texts, and let go with its Ray cluster."""

import tempfile
from pathlib import Path

from vagen.config import InfraConfig, config_digest, load_experiment, load_infra
from vagen.stages.mirror import CONFIG
from vagen.stages.routing import run_name, split_uri
from vagen.stages.run import Run
from vagen.stages.session import StageError
from vagen.stages.step import LOGS, keep_logs
from vagen.storage import commit_directory, open_store


def begin(run: str, *, experiment: str, infra: str) -> None:
    """Makes the run if it is not there, and on Kubernetes its Ray cluster.

    Raises:
        StageError: There is no such run and nothing to make it from, or it is another one.
        ClusterError: The Ray cluster cannot be had.
    """
    found = _opened(run)
    if found is None:
        found = _created(run, experiment, infra)
    elif experiment:
        _check_same(found, run, experiment)
    if found.infra.has_ray_cluster:
        from vagen.stages.launcher import bring_up

        bring_up(run, found.infra)


def release(run: str) -> bool:
    """Lets the run's Ray cluster go, if it has one; its logs are in the store then.

    Returns:
        Whether there is such a run.
    """
    found = _opened(run)
    if found is not None and found.infra.has_ray_cluster:
        _end_cluster(run, found.infra)
    return found is not None


def _opened(run: str) -> Run | None:
    """The run, if it is in its store."""
    root, name = split_uri(run)
    there = open_store(root).read_file(f"{name}/{CONFIG[0]}") is not None
    return Run.open(run) if there else None


def _created(run: str, experiment: str, infra: str) -> Run:
    """A new run from the texts of its files."""
    if not experiment:
        raise StageError(f"there is no run {run}, and no experiment to make it from")
    with tempfile.TemporaryDirectory() as folder:
        files = {"experiment": experiment, "infra": infra}
        for name, text in files.items():
            (Path(folder) / f"{name}.yaml").write_text(text)
        where = load_infra(Path(folder) / "infra.yaml")
        if where.store is None or f"{where.store.rstrip('/')}/{run_name(run)}" != run:
            raise StageError(f"infra.store is {where.store!r}, and the run shall be {run}")
        return Run.create(
            load_experiment(Path(folder) / "experiment.yaml"), where, name=run_name(run)
        )


def _check_same(found: Run, run: str, experiment: str) -> None:
    """A run is taken up with the experiment that it was made with."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "experiment.yaml"
        path.write_text(experiment)
        if config_digest(load_experiment(path)) != found.config_digest:
            raise StageError(
                f"{run} exists with another experiment: choose another name, or submit it with "
                "its own (--clone)"
            )


def _end_cluster(run: str, infra: InfraConfig) -> None:
    """Deletes the Ray cluster; logs of Ray and of the pods are in the store first, as far as they
    can be had.
    """
    from vagen.stages import launcher

    def save_pod_logs() -> None:
        with tempfile.TemporaryDirectory() as folder:
            logs = Path(folder) / LOGS
            with commit_directory(logs, kind=LOGS) as partial:
                launcher.save_logs(run, infra, partial)
            keep_logs(run, logs, "pods")

    try:
        for save in (lambda: launcher.save_ray_logs(run, infra), save_pod_logs):
            try:
                save()
            except ValueError as error:
                print(f"logs of {run} are not saved: {error}", flush=True)
    finally:
        launcher.delete(run, infra)
