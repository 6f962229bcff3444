"""Registers a trained model, and moves the alias only to a better one.

A version is loaded back from the registry and must respond before any alias is set. The alias moves
only if paired comparisons on the same held-out levels show that the new version is better than the
initial policy of its training and than the alias's current holder. Each version stores its results
per level.
"""

import base64
import json
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from vagen.config.base import redact
from vagen.storage.manifest import Manifest, scan_files
from vagen.tracking.provenance import package_versions
from vagen.tracking.server import TrackingError, account_fault, errors, mlflow_at, open_client
from vagen.tracking.stats import PairedGain, paired_bootstrap, success_ci95
from vagen.tracking.tracker import legal_name

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

ALIAS = "champion"
ANSWER_TOKENS = 16
"""Maximum length of test responses, whose content does not matter."""
PYFUNC_MODEL = Path(__file__).parents[1] / "serve" / "registered.py"

_RESULTS = "levels.json"
_DIGEST_TAG = "vagen.model_digest"
_LOADABLE_TAG = "vagen.loadable"
_REQUIRED = ("vagen", "torch", "transformers", "numpy")


class RegistrationError(TrackingError):
    """A model that cannot be registered, or that does not respond afterwards."""


@dataclass(frozen=True, slots=True)
class Registration:
    """Result of a registration."""

    name: str
    version: str
    model_uri: str
    """`models:/<name>/<version>`."""
    alias: str | None
    """The alias if this version now holds it."""
    reason: str
    """Why it got the alias or not."""
    gain: PairedGain | None
    """Gain in the last comparison, with the alias's holder or the initial policy."""


@dataclass(frozen=True, slots=True)
class Example:
    """A test message for the registered model."""

    prompt: str
    """User text, `<image>` once per picture."""
    images: Sequence[bytes] = ()
    """PNG bytes."""
    system_prompt: str = ""

    def row(self) -> dict[str, Any]:
        """The row for the registered model."""
        return {
            "prompt": self.prompt,
            "images": [base64.b64encode(png).decode() for png in self.images],
            "system_prompt": self.system_prompt,
        }


def register_model(
    model_dir: Path,
    name: str,
    run_id: str,
    *,
    uri: str,
    results: Mapping[str, float],
    examples: Sequence[Example],
    before: Mapping[str, float] | None = None,
    metrics: Mapping[str, float] | None = None,
    tags: Mapping[str, str] | None = None,
    seed: int = 0,
    alias: str = ALIAS,
    step: int = 0,
    code: Path = PYFUNC_MODEL,
) -> Registration:
    """Registers a model directory as a new version, tests it and compares it with the best.

    A repeated call for the same run and files reuses the existing version.

    Args:
        model_dir: An ordinary model directory.
        name: Name of the registered model.
        run_id: MLflow run of the training.
        uri: MLflow server or database.
        results: Success (0 to 1) by held-out level.
        examples: Test messages.
        before: Results of the initial policy, which the model must exceed.
        metrics: Summary metrics, stored as tags of the version.
        tags: Further tags of the version.
        seed: Seed of the bootstrap.
        alias: Alias to move if this version is better.
        step: Training iterations of the model.
        code: File that defines the pyfunc model.

    Raises:
        RegistrationError: The folder is not a model, or the registered version cannot be loaded or
            does not respond; the alias then stays.
        TrackingError: MLflow cannot be reached.
    """
    if not (Path(model_dir) / "config.json").is_file():
        raise RegistrationError(f"{model_dir} is not a model directory: it has no config.json")
    if not results:
        raise RegistrationError("a model is registered with its results: `results` is empty")
    client = open_client(uri)
    try:
        files = scan_files(Path(model_dir))
        digest = Manifest(kind="model", schema_version=1, created="", files=files).digest
        tags = {**(tags or {}), _DIGEST_TAG: digest}
        with mlflow_at(uri) as mlflow:
            # Before files are sent: the name may be another account's.
            if not client.search_registered_models(f"name = '{name}'"):
                client.create_registered_model(name)
            for version in client.search_model_versions(f"name = '{name}'"):
                same = (version.run_id, version.tags.get(_DIGEST_TAG)) == (run_id, digest)
                if same and version.tags.get(_LOADABLE_TAG) != "false":
                    break  # an interrupted registration of the same files created it
            else:
                model_id = _log(mlflow, client, name, Path(model_dir), run_id, results, step, code)
                version = _create(client, name, run_id, model_id, results, metrics or {}, tags)
            _answers(mlflow, client, version, examples)
            return _compare(mlflow, client, version, results, before, seed, alias)
    except errors() as error:
        raise RegistrationError(
            f"the model {name!r} could not be registered: {account_fault(error) or error}"
        ) from error


def load_registered(model_uri: str, *, uri: str) -> Any:
    """The pyfunc model behind `models:/<name>/<version>` or `models:/<name>@<alias>`."""
    with mlflow_at(uri) as mlflow:
        return mlflow.pyfunc.load_model(model_uri)


def fetch_registered(model_uri: str, *, uri: str) -> Path:
    """Copies the model directory of `models:/<name>/<version>` or `models:/<name>@<alias>` here.

    Raises:
        TrackingError: There is no such version, or MLflow cannot be reached.
    """
    open_client(uri)
    try:
        with mlflow_at(uri) as mlflow:
            folder = mlflow.artifacts.download_artifacts(model_uri)
            artifacts = mlflow.models.Model.load(folder).flavors["python_function"]["artifacts"]
            return Path(folder, artifacts["model"]["path"])
    except (*errors(), KeyError) as error:
        raise TrackingError(
            f"{model_uri} cannot be fetched from {redact(uri)}: {error}; it must be a version that "
            "vagen has registered"
        ) from error


def holder_results(
    name: str, alias: str, *, uri: str
) -> tuple[str, dict[str, float] | None] | None:
    """The version that holds an alias, with its results by level, None if it has none.

    None if no version holds the alias, or the model is not registered.

    Raises:
        TrackingError: MLflow cannot be reached.
    """
    client = open_client(uri)
    with mlflow_at(uri) as mlflow:
        if not client.search_registered_models(f"name = '{name}'"):
            return None
        holder = _holder(client, name, alias)
        if holder is None:
            return None
        return holder, _stored_results(mlflow, f"models:/{name}/{holder}")


def record_deployment(name: str, version: str, reason: str, *, alias: str | None, uri: str) -> None:
    """Writes the result of a deployment into a version's tag `deployment`.

    Args:
        name: Name of the registered model.
        version: Its version.
        reason: The result in words.
        alias: Alias to move to it; None to move none.
        uri: MLflow server or database.

    Raises:
        TrackingError: MLflow cannot be reached.
    """
    client = open_client(uri)
    try:
        if alias is not None:
            client.set_registered_model_alias(name, alias, version)
        client.set_model_version_tag(name, version, "deployment", reason)
    except errors() as error:
        raise TrackingError(f"models:/{name}/{version}: {error}") from error


def _log(
    mlflow: Any,
    client: "MlflowClient",
    name: str,
    model_dir: Path,
    run_id: str,
    results: Mapping[str, float],
    step: int,
    code: Path,
) -> str:
    """Stores model directory, code and results as a logged model; returns its id."""
    from mlflow.models import Model, ModelSignature
    from mlflow.types.schema import (
        AnyType,
        Array,
        ColSpec,
        DataType,
        Object,
        ParamSchema,
        ParamSpec,
        Property,
        Schema,
    )

    message = Object([Property("role", DataType.string), Property("content", AnyType())])
    inputs = Schema(
        [
            ColSpec(Array(message), "messages", required=False),
            ColSpec(DataType.string, "prompt", required=False),
            ColSpec(Array(DataType.string), "images", required=False),
            ColSpec(DataType.string, "system_prompt", required=False),
        ]
    )
    outputs = Schema([ColSpec(DataType.string, "response")])
    params = ParamSchema(
        [
            ParamSpec("max_new_tokens", DataType.integer, 200),
            ParamSpec("temperature", DataType.double, 0.0),
            ParamSpec("seed", DataType.integer, 0),
        ]
    )
    experiment = client.get_run(run_id).info.experiment_id
    model_id = client.create_logged_model(experiment, name=name, source_run_id=run_id).model_id
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about a missing input example
        levels = Path(folder) / _RESULTS
        levels.write_text(json.dumps(dict(sorted(results.items()))))
        Model.log(
            artifact_path=None,
            flavor=mlflow.pyfunc,
            model_id=model_id,
            run_id=run_id,
            step=step,
            python_model=str(code),
            artifacts={"model": str(model_dir.absolute()), "results": str(levels)},
            signature=ModelSignature(inputs, outputs, params),
            pip_requirements=[
                f"{package}=={text.partition('+')[0]}"
                for package, text in package_versions().items()
                if package in _REQUIRED
            ],
        )
    return model_id


def _create(
    client: "MlflowClient",
    name: str,
    run_id: str,
    model_id: str,
    results: Mapping[str, float],
    metrics: Mapping[str, float],
    tags: Mapping[str, str],
) -> "ModelVersion":
    """Creates a version of the logged model, with its results."""
    success, (low, high) = fmean(results.values()), success_ci95([*results.values()])
    return client.create_model_version(
        name,
        source=f"models:/{model_id}",
        run_id=run_id,
        model_id=model_id,
        tags={
            **{legal_name(key): f"{value:.6g}" for key, value in metrics.items()},
            **tags,
            "success": f"{success:.4f}",
            "success.ci95": f"{low:.4f} {high:.4f}",
            "levels": str(len(results)),
        },
        description=f"Success {success:.3f} on {len(results)} held-out levels, "
        f"95 % interval {low:.3f} to {high:.3f}.",
    )


def _answers(
    mlflow: Any, client: "MlflowClient", version: "ModelVersion", examples: Sequence[Example]
) -> None:
    """Loads the version as a user would and sends it the examples; reports any error."""
    where = f"models:/{version.name}/{version.version}"
    try:
        model = mlflow.pyfunc.load_model(where)
        rows = [example.row() for example in examples]
        responses = model.predict(rows, params={"max_new_tokens": ANSWER_TOKENS})
        if len(responses) != len(examples) or not all(isinstance(r, str) for r in responses):
            raise TypeError(f"{len(examples)} messages were answered with {responses!r}")
    except Exception as error:  # any failure of registered code or weights
        client.set_model_version_tag(version.name, version.version, _LOADABLE_TAG, "false")
        raise RegistrationError(
            f"the registered model {where} does not answer, so no alias was set: "
            f"{type(error).__name__}: {error}"
        ) from error
    client.set_model_version_tag(version.name, version.version, _LOADABLE_TAG, "true")


def _compare(
    mlflow: Any,
    client: "MlflowClient",
    version: "ModelVersion",
    results: Mapping[str, float],
    before: Mapping[str, float] | None,
    seed: int,
    alias: str,
) -> Registration:
    """Moves the alias to the version if it is better."""
    name, number = version.name, str(version.version)
    gain: PairedGain | None = None
    better, reason = True, f"no version held the alias {alias!r}"
    holder = _holder(client, name, alias)
    if holder == number:
        reason = f"this version holds the alias {alias!r} already"
    else:
        if before is not None:
            began = "the policy that training began with"
            better, reason, gain = _judge(results, before, began, seed)
        if better and holder is not None:
            held = _stored_results(mlflow, f"models:/{name}/{holder}")
            better, reason, gain = _judge(results, held, f"version {holder}", seed)
        if better:
            client.set_registered_model_alias(name, alias, number)
    client.set_model_version_tag(name, number, f"alias.{alias}", reason)
    uri = f"models:/{name}/{number}"
    return Registration(name, number, uri, alias if better else None, reason, gain)


def _holder(client: "MlflowClient", name: str, alias: str) -> str | None:
    """The version that holds an alias."""
    aliases = client.get_registered_model(name).aliases
    return str(aliases[alias]) if alias in aliases else None


def _judge(
    results: Mapping[str, float], held: Mapping[str, float] | None, holder: str, seed: int
) -> tuple[bool, str, PairedGain | None]:
    """Whether `results` are better than `held` beyond chance, and why."""
    if held is None:
        return False, f"{holder} has no readable results to compare with", None
    if results.keys() != held.keys():
        shared = len(results.keys() & held.keys())
        return (
            False,
            f"{holder} was evaluated on other levels ({shared} of {len(results)} are shared): "
            "evaluate both on the same levels",
            None,
        )
    levels = sorted(results)
    gain = paired_bootstrap([held[x] for x in levels], [results[x] for x in levels], seed=seed)
    low, high = gain.ci95
    verdict = "better than" if low > 0 else "not shown to be better than"
    reason = f"{verdict} {holder}: gain {gain.gain:+.3f}, 95 % interval {low:+.3f} to {high:+.3f}"
    return low > 0, reason, gain


def _stored_results(mlflow: Any, model_uri: str) -> dict[str, float] | None:
    try:
        data = mlflow.artifacts.load_dict(f"{model_uri}/artifacts/{_RESULTS}")
        return {str(level): float(value) for level, value in data.items()}
    except (*errors(), ValueError, AttributeError, TypeError):
        return None
