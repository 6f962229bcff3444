"""An evaluation by several processes, one per model, which share a store.

Its URI has, like a local folder, `rows/ENVIRONMENT/MODEL` and `evaluation.yaml`, and the answers as
`journals/MODEL.jsonl`. A process that replaces a killed one finds all answers but those of the last
seconds.
"""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vagen import progress
from vagen.config.base import ConfigError
from vagen.config.evaluation_options import EvaluationConfig, ModelEntry
from vagen.config.infra import InfraConfig
from vagen.config.yaml_io import parse_yaml
from vagen.evaluation.evaluate import (
    JOURNAL,
    OPTIONS,
    ROWS,
    Evaluated,
    check_rows,
    evaluate,
    experiment_file,
    load_evaluation,
    slug,
)
from vagen.evaluation.policies import SCRIPTED, endpoint_options
from vagen.evaluation.prices import load_prices, prices_file
from vagen.evaluation.record import DONE, FOLDER, record
from vagen.experiment.load import load_infra
from vagen.run import layout
from vagen.run.layout import split_uri
from vagen.storage import Store, StoreAway, open_store, write_whole
from vagen.tracking import TrackingError

SECONDS = 15.0
"""Seconds between uploads of answers."""
_TABLE = "-table"
"""Journal of the process with all rows, which plays episodes that budgets left out. Not a model's
folder name."""


def evaluate_in_store(evaluation: str, infra: str, uri: str, model: str) -> Evaluated:
    """Plays one model in every environment, or makes the table when all have played.

    Args:
        evaluation: The options, YAML. Each hosted model gets an equal share of its budgets.
        infra: The infrastructure, YAML.
        uri: URI of the evaluation, `file://` or `s3://`. Existing results there, or in this
            machine's folder if the store was unavailable, are reused.
        model: Name of the row; empty makes the table and records it in MLflow.

    Returns:
        The results, in a local folder.

    Raises:
        ConfigError, EndpointError: See `evaluate`; also for a model with weights.
        StorageError: The store cannot be used.
        StoreAway: It does not respond; a repeated call continues.
    """
    options = load_evaluation(parse_yaml(evaluation, "evaluation"))
    where = load_infra(parse_yaml(infra, "infra"))
    place, name = split_uri(uri)
    store = open_store(place, where.s3)
    own = slug(model) if model else _TABLE
    folder = Path(where.output_dir) / layout.EVALUATIONS / name / own
    selected = _alone(options, model) if model else options
    _fetch(store, name, folder, selected.models)
    with _kept(store, f"{name}/journals/{own}.jsonl", folder / JOURNAL):
        evaluated = evaluate(selected, where, folder, _weights)
    for row in evaluated.rows:
        key = row.folder.relative_to(folder).as_posix()
        store.put_directory(row.folder, f"{name}/{key}", replace=True)
    if not model:
        store.write_file(f"{name}/{OPTIONS}", (folder / OPTIONS).read_bytes())
        _record(store, name, evaluated, options, where)
    return evaluated


def fetch_evaluation(uri: str, infra: InfraConfig, folder: Path) -> bool:
    """Downloads an evaluation from a store to a folder.

    Returns:
        Whether the store has an evaluation with a table.
    """
    place, name = split_uri(uri)
    store = open_store(place, infra.s3)
    content = store.read_file(f"{name}/{OPTIONS}")
    if content is None:
        return False
    if not (folder / OPTIONS).exists():  # otherwise complete an interrupted download
        options = load_evaluation(parse_yaml(content.decode(), uri))
        _fetch(store, name, folder, options.models)
        (folder / OPTIONS).write_bytes(content)
    return True


def for_pods(options: EvaluationConfig, secrets: Sequence[str]) -> EvaluationConfig:
    """The options for another machine, with the content of local files.

    Args:
        options: Options of the evaluation.
        secrets: Environment variables of tasks from Secrets.

    Raises:
        ConfigError: Another machine could not run it; the message says how to fix it.
    """
    for row in check_rows(options, _weights):
        entry = row.entry
        own = endpoint_options(options.endpoint, entry.endpoint, entry.label)
        variable = row.hosted and row.hosted.key_variable(own.api_key_env)
        if variable and variable not in secrets:
            raise ConfigError(
                f"{entry.model} needs {variable}, which no Secret gives to the tasks: "
                f"infra.kubernetes.secrets.NAME=[{variable}]"
            )
    load_prices(options.prices)
    prices = options.prices
    if isinstance(prices, str) and prices != "litellm":
        prices = prices_file(prices).tree
    environments = {
        name: entry.model_copy(update={"experiment": experiment_file(entry).tree})
        for name, entry in options.environments.items()
    }
    return options.model_copy(update={"prices": prices, "environments": environments})


def _weights(spec: str) -> str:
    raise ConfigError(
        f"model {spec!r} has weights, which tasks of an evaluation do not load: measure a run by "
        "`vagen submit --evaluate RUN`, or serve the model and write openai:MODEL@http://..."
    )


def _alone(options: EvaluationConfig, label: str) -> EvaluationConfig:
    """One model's part of the options."""
    entries = [entry for entry in options.models if entry.label == label]
    if not entries:
        raise ConfigError(f"the evaluation has no model {label!r}")
    changed: dict[str, Any] = {"models": entries, "baseline": None}
    parts = max(1, sum(entry.model not in SCRIPTED for entry in options.models))
    if options.max_cost is not None:
        changed["max_cost"] = options.max_cost / parts
    if options.max_tokens is not None:
        changed["max_tokens"] = max(1, options.max_tokens // parts)
    return options.model_copy(update=changed)


def _record(
    store: Store, name: str, evaluated: Evaluated, options: EvaluationConfig, infra: InfraConfig
) -> None:
    """Records results in MLflow; the store keeps the ids of the MLflow runs."""
    place, key = evaluated.folder / FOLDER, f"{name}/{FOLDER}.json"
    for path, content in json.loads(store.read_file(key) or b"{}").items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(content)
    try:
        record(evaluated, options, infra)
    except TrackingError as error:
        progress.note(f"{error}; the evaluation does not need it")
    files = [*place.rglob(layout.MLFLOW_RUN), *place.rglob(DONE)]
    runs = {path.relative_to(place).as_posix(): path.read_text() for path in files}
    store.write_file(key, json.dumps(runs).encode())


def _fetch(store: Store, name: str, folder: Path, models: Sequence[ModelEntry]) -> None:
    """Downloads rows and answers of some models, and merges the answers into one journal."""
    places = [slug(entry.label) for entry in models]
    folder.mkdir(parents=True, exist_ok=True)
    for key in store.list(f"{name}/{ROWS}"):
        place = folder / Path(key).relative_to(name)
        if place.name in places and not place.exists():
            store.fetch_directory(key, place)
    journal = folder / JOURNAL
    found = [journal.read_bytes() if journal.is_file() else b""]
    found += [
        store.read_file(f"{name}/journals/{place}.jsonl") or b"" for place in (*places, _TABLE)
    ]
    lines = dict.fromkeys(line for content in found for line in content.splitlines(True))
    with write_whole(journal) as partial:
        partial.write_bytes(b"".join(line for line in lines if line.endswith(b"\n")))


@contextmanager
def _kept(store: Store, name: str, journal: Path) -> Iterator[None]:
    """Uploads a growing journal to a store at intervals and at the end."""
    ended, sent = threading.Event(), 0

    def send() -> None:
        nonlocal sent
        content = journal.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) > sent:
            store.write_file(name, whole)
            sent = len(whole)

    def keep() -> None:
        while not ended.wait(SECONDS):
            try:
                send()
            except StoreAway as error:
                progress.note(f"{error}; answers are copied once it responds")

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        send()
