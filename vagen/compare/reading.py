"""Reads runs for a comparison from their folders, stores, or MLflow."""

import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vagen import progress
from vagen.config.base import ConfigError
from vagen.config.errors import unknown_name
from vagen.config.infra import InfraConfig
from vagen.experiment.load import load_experiment, load_infra
from vagen.metrics import SUCCESS
from vagen.run import layout
from vagen.run.folder import committed, lengthened, read_results
from vagen.run.layout import is_uri
from vagen.run.run import Run
from vagen.run.spent import gpu_hours, step_seconds, working_seconds
from vagen.storage import open_store
from vagen.tracking import TrackingError, default_uri, open_client
from vagen.tracking.server import errors
from vagen.tracking.tracker import flatten

if TYPE_CHECKING:
    from mlflow import MlflowClient

VALIDATION = "val/success"
CURVES = (SUCCESS, VALIDATION, "train/score")
"""Metrics that are compared over iterations."""


class ComparisonError(ValueError):
    """Runs that cannot be compared; the message says which, and how to fix it."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Data of one run for a comparison."""

    name: str
    source: str
    """Where it was read from."""
    options: dict[str, str]
    """Its configuration as text by dotted key; keys of the infra start with `infra.`."""
    history: list[dict[str, float]]
    """Rows with `iteration` and metrics of `CURVES`."""
    by_level: dict[str, float]
    """Success of the final policy per held-out level, by content hash, with prefix `<environment
    id>/` if there are several environments; empty if not evaluated."""
    seconds: dict[str, float]
    """Seconds by step."""
    hours: float
    """Working time."""
    gpu_hours: float
    """0 for a run on CPU."""
    gpu_hour_price: float | None

    @property
    def device_hours(self) -> float:
        """GPU-hours; on a CPU the working time."""
        return self.gpu_hours or self.hours


def read_runs(places: Iterable[str | Path]) -> list[RunSummary]:
    """Reads the runs at these places, each once.

    Args:
        places: Folders of runs, names under the output folder, URIs in a store, or a folder or
            store URI that contains runs.

    Raises:
        ComparisonError: One of them has no run.
        StorageError: A store cannot be used, or a run's results were changed.
    """
    found: dict[str, RunSummary] = {}
    for place in places:
        for one in _runs_at(place):
            key = one if isinstance(one, str) else str(one.resolve())
            if key not in found:
                found[key] = _read(one)
    return list(found.values())


def read_mlflow(address: str) -> list[RunSummary]:
    """Reads the trainings of an MLflow experiment.

    Args:
        address: `EXPERIMENT`, in the database of the output folder, or `EXPERIMENT@TRACKING_URI`.

    Raises:
        TrackingError: MLflow cannot be reached, or has no such experiment.
        ComparisonError: It has no training.
    """
    name, _, uri = address.partition("@")
    uri = uri or default_uri(Path(InfraConfig().output_dir))
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        raise TrackingError(f"there is no MLflow database {uri}: name yours, {name}@TRACKING_URI")
    client = open_client(uri, option="--from-mlflow")
    try:
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            known = [one.name for one in client.search_experiments()]
            raise TrackingError(unknown_name("MLflow experiment", name, known))
        runs = _search(client, experiment.experiment_id)
        trainings = [run for run in runs if "vagen.config_digest" in run.data.tags]
        found = [_read_tracked(client, run) for run in trainings]
    except errors() as error:
        raise TrackingError(f"MLflow at {uri} cannot be read: {error}") from error
    if not found:
        raise ComparisonError(f"the MLflow experiment {name!r} has no trainings of vagen")
    return found


def _runs_at(place: str | Path) -> Iterator[str | Path]:
    if isinstance(place, str) and is_uri(place):
        uri = place.rstrip("/")
        store = open_store(uri)
        if store.read_file(layout.EXPERIMENT.as_posix()) is not None:
            yield uri
            return
        names = sorted({key.partition("/")[0] for key in store.list()})
        runs = [each for each in names if store.read_file(f"{each}/{layout.EXPERIMENT}")]
        if not runs:
            raise ComparisonError(f"there is no run at {uri}, nor below it")
        yield from (f"{uri}/{each}" for each in runs)
        return
    outputs = Path(InfraConfig().output_dir)
    for path in (Path(place), outputs / place):
        if (path / layout.EXPERIMENT).is_file():
            yield path
            return
        inside = [found.parents[1] for found in sorted(path.glob(f"*/{layout.EXPERIMENT}"))]
        if inside:
            yield from (run for run in inside if run.name != layout.LATEST)
            return
    if Path(place).exists():
        raise ComparisonError(f"{place} is neither a run's folder nor one that holds runs")
    known = [found.parents[1].name for found in outputs.glob(f"*/{layout.EXPERIMENT}")]
    raise ComparisonError(f"{unknown_name('run', str(place), known)} (in {outputs}/)")


def _read(place: str | Path) -> RunSummary:
    try:
        run = Run.open(place)
        if run.mirror is not None and is_uri(place):
            run.mirror.pull()
        final = run.evaluation(layout.FINAL)
        results = {} if committed(final) is None else read_results(run.fetch(final, layout.RESULTS))
        names = ("iteration", *CURVES)
        rows = run.iteration_metrics()
        history = [{name: row[name] for name in names if name in row} for row in rows]
        history += [
            {"iteration": iteration, VALIDATION: success}
            for iteration, success in run.validations().items()
        ]
    except ConfigError as error:
        raise ComparisonError(f"{place} cannot be read: {error}") from error
    events = progress.read_events(run.events)
    return RunSummary(
        name=run.name,
        source=str(place),
        options=_options(run.path),
        history=history,
        by_level=results.get("by_level", {}),
        seconds=step_seconds(events),
        hours=working_seconds(events) / 3600,
        gpu_hours=gpu_hours(events),
        gpu_hour_price=run.infra.gpu_hour_price,
    )


def _options(folder: Path) -> dict[str, str]:
    """The run's current configuration with all defaults."""
    experiment = lengthened(load_experiment(str(folder / layout.EXPERIMENT), check=False), folder)
    infra = load_infra(str(folder / layout.INFRA))
    tree = {**experiment.model_dump(mode="json"), "infra": infra.model_dump(mode="json")}
    return flatten(tree)


def _search(client: "MlflowClient", experiment: str) -> list[Any]:
    """All runs of an experiment, oldest first."""
    found, token = [], None
    while True:
        page = client.search_runs(
            [experiment], order_by=["attributes.start_time ASC"], page_token=token
        )
        found += page
        token = page.token
        if not token:
            return found


def _read_tracked(client: "MlflowClient", run: Any) -> RunSummary:
    """Reads a training from MLflow: configuration, metrics and results as files of the run."""
    identity, name = run.info.run_id, run.data.tags.get("vagen.run", run.info.run_name)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _download(client, identity, layout.EXPERIMENT.parent, folder)
        results = _read_json(
            client, identity, Path(layout.EVALUATIONS, layout.FINAL, layout.RESULTS), folder
        )
        summary = _read_json(client, identity, Path(layout.SUMMARY), folder)
        if not (folder / layout.EXPERIMENT).is_file():
            raise ComparisonError(f"the MLflow run {name} has no {layout.EXPERIMENT}")
        extended = [json.dumps(line) for line in summary.get("extended", [])]
        (folder / layout.EXTENSIONS).write_text("\n".join(extended))
        options = _options(folder)
        price = load_infra(str(folder / layout.INFRA)).gpu_hour_price
    seconds = summary.get("seconds", {})
    return RunSummary(
        name=name,
        source=f"MLflow run {identity}",
        options=options,
        # MLflow has validations after n iterations at step n, other metrics at n - 1.
        history=[
            {"iteration": point.step - (metric == VALIDATION), metric: point.value}
            for metric in CURVES
            for point in client.get_metric_history(identity, metric)
        ],
        by_level=results.get("by_level", {}),
        seconds={stage: value for stage, value in seconds.items() if stage != "total"},
        hours=seconds.get("total", 0.0) / 3600,
        gpu_hours=summary.get("gpu_hours", 0.0),
        gpu_hour_price=price,
    )


def _read_json(client: "MlflowClient", run: str, file: Path, folder: Path) -> dict[str, Any]:
    """A JSON file of the run; {} if it does not exist yet."""
    within = None if file.parent == Path() else file.parent.as_posix()
    files = {one.path for one in client.list_artifacts(run, within)}
    if file.as_posix() not in files:
        return {}
    return json.loads(_download(client, run, file, folder).read_text())


def _download(client: "MlflowClient", run: str, path: Path, folder: Path) -> Path:
    return Path(client.download_artifacts(run, path.as_posix(), str(folder)))
