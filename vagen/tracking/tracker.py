"""One MLflow run per pipeline run.

Failures of tracking must not stop a training: a record that the server does not accept is stored in
a file of the run and sent later. Only `Tracker.start` and `Tracker.attach` fail, before any
computation.
"""

import hashlib
import json
import logging
import os
import posixpath
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from vagen.storage import StorageError, append_line, read_lines, write_whole
from vagen.tracking.extra import ExtraTracker
from vagen.tracking.provenance import git_commit, package_versions
from vagen.tracking.server import (
    TrackingError,
    account_fault,
    default_uri,
    errors,
    mlflow_at,
    open_client,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient

PENDING = "tracking_pending.jsonl"
"""File of a run's folder with records that the server has not accepted yet."""
RETRY_SECONDS = 30.0
"""Seconds after a failure during which records are stored without a new attempt."""

_LOG = logging.getLogger("vagen.tracking")
_RUN_DIR = "vagen.run_dir"
_PARAMS_PER_BATCH = 100
_METRICS_PER_BATCH = 1_000
_EPISODES = 2
"""Number of successful episodes, and of failed ones, that are recorded of an evaluation."""
_VIEW = {
    "searchFilter": "",
    "orderByKey": "attributes.start_time",
    "orderByAsc": False,
    "startTime": "ALL",
    "lifecycleFilter": "Active",
    "modelVersionFilter": "All Runs",
    "datasetsFilter": [],
    "selectedColumns": [
        "attributes.`Duration`",
        "metrics.`test/success`",
        "tags.`vagen.gain`",
        "params.`preset`",
        "params.`seed`",
        "tags.`vagen.changed`",
    ],
}
"""State of MLflow's list of runs, in the format of its `Share` button."""
_EXPERIMENT_TAGS = {
    "mlflow.sharedViewState.vagen": json.dumps(_VIEW),
    "mlflow.experimentKind": "custom_model_development",
    "mlflow.experiment.primaryMetric.name": "test/success",
    "mlflow.experiment.primaryMetric.greaterIsBetter": "True",
    "mlflow.note.content": "Multi-turn reinforcement learning by VAGEN. `test/success` is the "
    "share of held-out levels that are solved, at step 0 by the policy that training began with; "
    "docs/metrics.md says what each metric means.",
}
"""Tag for the training page, whose list of runs shows success first."""
_PERMANENT = {
    "INVALID_PARAMETER_VALUE",
    "BAD_REQUEST",
    "RESOURCE_DOES_NOT_EXIST",
    "PERMISSION_DENIED",
}

EndStatus = Literal["FINISHED", "FAILED", "KILLED"]
Record = dict[str, Any]
"""A call of the server that can be stored: `op` and its arguments."""


class Tracker:
    """Records of one run: parameters, metrics and files."""

    def __init__(self, client: "MlflowClient", *, uri: str, run_id: str, run_dir: Path) -> None:
        """Use `start` or `attach`."""
        self.uri = uri
        """Address of the server or database."""
        self.run_id = run_id
        self.run_dir = run_dir
        self.extra_trackers: list[ExtraTracker] = []
        """Additional trackers with the same metrics."""
        self._client = client
        self._file = run_dir / PENDING
        self._pending: list[Record] = read_lines(self._file)
        """Records that wait for the server, oldest first; also in the file if that is writable."""
        self._steps: dict[str, set[int]] = {}
        """Recorded steps by metric; filled on first use of a metric."""
        self._unread: set[str] = set()
        """Metrics of an earlier process whose steps are not in `_steps` yet."""
        self._retry_at = 0.0
        self._refusals: set[str] = set()
        self._machine: Any = None
        for record in self._pending:
            for name in record.get("metrics", ()):
                self._steps.setdefault(name, set()).add(record["step"])

    @classmethod
    def start(
        cls,
        *,
        experiment: str,
        run_name: str,
        run_dir: Path,
        output_dir: Path,
        uri: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> "Tracker":
        """Opens a new MLflow run, tagged with commit, package versions and the run's folder.

        A run in the environment (`MLFLOW_RUN_ID`, set by pipelines) becomes its parent.

        Args:
            experiment: Name of the MLflow experiment, created if missing.
            run_name: Name of the run, e.g. that of its folder.
            run_dir: The run's folder.
            output_dir: Folder of the default database `mlflow.db` and its files `mlartifacts`.
            uri: Any MLflow server or database; None for the default database.
            tags: Further tags.

        Raises:
            TrackingError: The server cannot be reached or the experiment was deleted.
            StorageError: The folder of the default database cannot be created.
        """
        uri = uri or default_uri(output_dir)
        client = open_client(uri)
        found = {
            "mlflow.source.name": "vagen",
            _RUN_DIR: str(Path(run_dir).absolute()),
            **{f"version.{name}": text for name, text in package_versions().items()},
        }
        if (checkout := git_commit()) is not None:
            commit, dirty = checkout
            found |= {"mlflow.source.git.commit": commit, "git.dirty": str(dirty).lower()}
        if parent := os.environ.get("MLFLOW_RUN_ID"):
            found["mlflow.parentRunId"] = parent
        try:
            run = client.create_run(
                _experiment_id(client, experiment, uri, output_dir),
                run_name=run_name,
                tags={**found, **(tags or {})},
            )
        except errors() as error:
            raise TrackingError(
                f"MLflow cannot start a run in {experiment!r} (`trainer.project_name`): "
                f"{account_fault(error) or error}"
            ) from error
        return cls(client, uri=uri, run_id=run.info.run_id, run_dir=Path(run_dir))

    @classmethod
    def attach(
        cls, *, run_id: str, run_dir: Path, output_dir: Path, uri: str | None = None
    ) -> "Tracker":
        """Continues a run of an earlier process.

        Raises:
            TrackingError: The server cannot be reached or has no such run.
        """
        uri = uri or default_uri(output_dir)
        client = open_client(uri)
        try:
            run = client.get_run(run_id)
            if run.data.tags.get(_RUN_DIR) != str(Path(run_dir).absolute()):
                client.set_tag(run_id, _RUN_DIR, str(Path(run_dir).absolute()))
            if run.info.status != "RUNNING":
                client.update_run(run_id, status="RUNNING")
        except errors() as error:
            reason = "there is no such run: use the address it was started with"
            raise TrackingError(
                f"run {run_id} of MLflow at {uri}: {account_fault(error) or reason}"
            ) from error
        tracker = cls(client, uri=uri, run_id=run_id, run_dir=Path(run_dir))
        tracker._unread = set(run.data.metrics)
        return tracker

    @staticmethod
    def folder_of(run_id: str, *, output_dir: Path, uri: str | None = None) -> Path | None:
        """The folder of a run's training; None if there is no such run.

        Raises:
            TrackingError: The server cannot be reached.
        """
        client = open_client(uri or default_uri(output_dir))
        try:
            return Path(client.get_run(run_id).data.tags.get(_RUN_DIR, ""))
        except errors():
            return None

    def set_tag(self, name: str, text: str) -> None:
        """Sets a tag of the run; `mlflow.note.content` is the description on its page."""
        self._record({"op": "tag", "tag": name, "text": text})

    def log_config(self, config: BaseModel | Mapping[str, Any]) -> None:
        """Records a configuration as parameters with dotted names."""
        tree = config.model_dump(mode="json") if isinstance(config, BaseModel) else config
        self._record({"op": "params", "params": legal_names(flatten(tree))})

    def log_metrics(self, metrics: Mapping[str, float | None], step: int) -> None:
        """Records the metrics of one step in one call; skips None.

        A metric keeps an existing value of `step`, so that a step repeated after a resume does not
        appear twice.
        """
        for tracker in self.extra_trackers:
            tracker.log_metrics(metrics, step)
        values = {
            name: float(value)
            for name, value in legal_names(metrics).items()
            if value is not None and step not in self._steps.get(name, ())
        }
        if not values:
            return
        for name in values:
            self._steps.setdefault(name, set()).add(step)
        now = int(time.time() * 1000)
        self._record({"op": "metrics", "metrics": values, "step": step, "time": now})

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Stores a file or a folder with its content in the run."""
        path = Path(path).absolute()
        if not path.exists():
            raise TrackingError(f"there is no {path} to store with the MLflow run")
        self._record({"op": "artifact", "path": str(path), "folder": folder})

    def log_dataset(self, name: str, *, digest: str, source: Mapping[str, Any], rows: int) -> None:
        """Records the levels as a dataset; equal levels have equal digests."""
        about = {"name": name, "digest": digest, "source": dict(source), "rows": rows}
        self._record({"op": "dataset", **about})

    def log_episodes(self, folder: Path, name: str) -> None:
        """Records a few episodes of a committed evaluation as traces."""
        self._record({"op": "traces", "path": str(Path(folder).absolute()), "name": name})

    def watch_machine(self) -> None:
        """Records CPU, memory, disk, network and GPUs every ten seconds until `finish`."""
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        logging.getLogger("mlflow.system_metrics").setLevel(logging.ERROR)
        self._machine = SystemMetricsMonitor(
            self.run_id, resume_logging=True, tracking_uri=self.uri
        )
        self._machine.start()

    def flush(self) -> bool:
        """Tries to send all stored records; True if none is left."""
        while self._pending:
            try:
                self._apply(self._pending[0])
            except errors() as error:
                if not _is_permanent(error):
                    self._retry_at = time.monotonic() + RETRY_SECONDS
                    with suppress(OSError, StorageError), write_whole(self._file) as partial:
                        partial.write_text("".join(f"{json.dumps(r)}\n" for r in self._pending))
                    return False
                self._refused(error)
            self._pending.pop(0)
            if not self._pending:
                _LOG.warning("MLflow answers again: everything kept back has been delivered")
        self._file.unlink(missing_ok=True)
        return True

    def finish(self, status: EndStatus = "FINISHED") -> None:
        """Sends stored records and closes the run, which can be attached again."""
        for tracker in self.extra_trackers:
            tracker.finish(failed=status == "FAILED")
        self._retry_at = 0.0
        if self._machine is not None:
            self._machine.finish()
            self._machine = None
        self._record({"op": "status", "status": status})
        if self._pending:
            _LOG.warning("MLflow records that could not be delivered are in %s", self._file)

    def _record(self, record: Record) -> None:
        """Applies a record, or stores it if earlier ones wait or the server fails."""
        if self._pending and (time.monotonic() < self._retry_at or not self.flush()):
            self._keep(record)
            return
        try:
            self._apply(record)
        except errors() as error:
            if _is_permanent(error):
                self._refused(error)
                return
            self._retry_at = time.monotonic() + RETRY_SECONDS
            self._keep(record)
            _LOG.warning(
                "MLflow at %s fails, training goes on and records are kept in %s until it "
                "answers: %s",
                self.uri,
                self._file,
                str(error).splitlines()[0] if str(error) else repr(error),
            )

    def _keep(self, record: Record) -> None:
        self._pending.append(record)
        with suppress(OSError):
            append_line(self._file, json.dumps(record))

    def _refused(self, error: Exception) -> None:
        if str(error) not in self._refusals:
            self._refusals.add(str(error))
            _LOG.warning("MLflow refused a record, which is left out: %s", error)

    def _apply(self, record: Record) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param

        match record["op"]:
            case "params":
                params = [Param(key, value) for key, value in record["params"].items()]
                for i in range(0, len(params), _PARAMS_PER_BATCH):
                    self._client.log_batch(self.run_id, params=params[i : i + _PARAMS_PER_BATCH])
            case "metrics":
                step, now = record["step"], record["time"]
                fresh = self._not_recorded(record["metrics"], step)
                metrics = [Metric(key, value, now, step) for key, value in fresh.items()]
                for i in range(0, len(metrics), _METRICS_PER_BATCH):
                    self._client.log_batch(self.run_id, metrics=metrics[i : i + _METRICS_PER_BATCH])
            case "artifact":
                path, folder = Path(record["path"]), record["folder"]
                if path.is_dir():
                    folder = f"{folder}/{path.name}" if folder else path.name
                    self._client.log_artifacts(self.run_id, str(path), artifact_path=folder)
                else:
                    self._client.log_artifact(self.run_id, str(path), artifact_path=folder)
            case "dataset":
                levels = Dataset(
                    record["name"],
                    record["digest"],
                    source_type="vagen",
                    source=json.dumps(record["source"]),
                    profile=json.dumps({"num_rows": record["rows"]}),
                )
                use = [InputTag("mlflow.data.context", "evaluation")]
                self._client.log_inputs(self.run_id, [DatasetInput(levels, use)])
            case "traces":
                self._log_traces(Path(record["path"]), record["name"])
            case "tag":
                self._client.set_tag(self.run_id, record["tag"], record["text"])
            case "status":
                self._client.set_terminated(self.run_id, status=record["status"])

    def _not_recorded(self, metrics: Mapping[str, float], step: int) -> dict[str, float]:
        """Removes metrics that an earlier process recorded for this step."""
        fresh = {}
        for name, value in metrics.items():
            if name in self._unread:
                history = self._client.get_metric_history(self.run_id, name)
                recorded = {metric.step for metric in history}
                self._unread.discard(name)
                self._steps.setdefault(name, set()).update(recorded)
                if step in recorded:
                    continue
            fresh[name] = value
        return fresh

    def _log_traces(self, folder: Path, name: str) -> None:
        """Records a few episodes of an evaluation, with a span per turn."""
        from vagen.rollout.batch import TrajectoryBatch

        trajectories = TrajectoryBatch.load(folder).trajectories
        experiment = self._client.get_run(self.run_id).info.experiment_id
        chosen = [
            item
            for success in (True, False)
            for item in [t for t in trajectories if t.success is success][:_EPISODES]
        ]
        with mlflow_at(self.uri) as mlflow:
            for item in chosen:
                root = self._client.start_trace(
                    f"{name}: {item.config_id}, {'solved' if item.success else 'not solved'}",
                    span_type="AGENT",
                    inputs={
                        "environment": item.env_name,
                        "level": item.level_hash,
                        "seed": str(item.seed),
                    },
                    tags={"evaluation": name, "success": str(item.success).lower()},
                    experiment_id=experiment,
                    run_id=self.run_id,
                )
                for number, turn in enumerate(item.turns, 1):
                    span = self._client.start_span(
                        f"turn {number}",
                        trace_id=root.trace_id,
                        parent_id=root.span_id,
                        span_type="CHAT_MODEL",
                        inputs={"observation": turn.observation_text, "images": len(turn.images)},
                    )
                    outputs = {"response": turn.response_text, "rewards": asdict(turn.rewards)}
                    self._client.end_span(root.trace_id, span.span_id, outputs=outputs)
                outputs = {"success": item.success, "score": float(item.score)}
                self._client.end_trace(root.trace_id, outputs=outputs)
            mlflow.flush_trace_async_logging()


def _experiment_id(client: "MlflowClient", name: str, uri: str, output_dir: Path) -> str:
    found = client.get_experiment_by_name(name)
    if found is None:
        served = uri.startswith(("http://", "https://"))
        root = None if served else (Path(output_dir).absolute() / "mlartifacts").as_uri()
        return client.create_experiment(name, artifact_location=root, tags=_EXPERIMENT_TAGS)
    if found.lifecycle_stage != "active":
        raise TrackingError(
            f"the MLflow experiment {name!r} was deleted: restore it with `mlflow experiments "
            f"restore -x {found.experiment_id}` or set another `trainer.project_name`"
        )
    return found.experiment_id


def _is_permanent(error: Exception) -> bool:
    """Whether retrying the same record is useless."""
    if isinstance(error, FileNotFoundError):
        return True
    return getattr(error, "error_code", None) in _PERMANENT


MAX_NAME = 250
"""Maximum length of a parameter's or metric's name."""
MAX_VALUE = 6_000
"""Maximum length of a parameter's value."""

_ILLEGAL = re.compile(r"[^/\w.\- ]")


def legal_name(name: str) -> str:
    """The nearest legal name: letters, digits, `_ - . /` and spaces, without parent folders."""
    text = _ILLEGAL.sub("_", name).strip("/ ")
    text = re.sub(r"^\.\.+|(^|/)\.+(?=/|$)", r"\1_", text)
    text = posixpath.normpath(text or "_")
    if len(text) <= MAX_NAME:
        return text
    return f"{text[: MAX_NAME - 9]}-{_short(name)}"


def legal_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with legal names; adds a digest where two names would be equal."""
    legal: dict[str, Any] = {}
    for name, value in values.items():
        key = legal_name(name)
        if key in legal or (key != name and key in values):
            key = f"{key[: MAX_NAME - 9]}-{_short(name)}"
        legal[key] = value
    return legal


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested mappings as dotted keys, e.g. `algorithm.kl_ctrl.kl_coef`; other values as text."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{name}."))
        else:
            flat[name] = _text(value)
    return flat


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 12]}…{_short(text)}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
