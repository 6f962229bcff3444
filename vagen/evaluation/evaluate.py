"""`vagen eval`: plays every model in every environment and writes a table with a row each.

The folder has the options (`evaluation.yaml`) and all answers (`journal.jsonl`). A repeated
evaluation continues: complete rows stay; others are replayed with the answers in the journal.
"""

import asyncio
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vagen import progress
from vagen.clients.vendors import parse_spec
from vagen.config.base import ConfigError
from vagen.config.errors import unknown_name, validate
from vagen.config.evaluation_options import EvaluationConfig, EvaluationEnvironment
from vagen.config.infra import InfraConfig
from vagen.config.layers import Layers, from_one_place, parse_override
from vagen.config.schema import ExperimentConfig
from vagen.config.yaml_io import Document, dump_yaml, read_yaml
from vagen.evaluation.export import as_csv, as_latex, as_markdown
from vagen.evaluation.journal import Journal
from vagen.evaluation.policies import SCRIPTED, endpoint_options, open_chat
from vagen.evaluation.prices import Budget, Prices, load_prices
from vagen.evaluation.rows import EvaluationContext, EvaluationRow, unreachable
from vagen.evaluation.table import Line, cells, ranked, read_line
from vagen.experiment.load import find_file, load_experiment
from vagen.report.leaderboard import LeaderboardEntry, write_leaderboard
from vagen.run import layout
from vagen.run.folder import read_results
from vagen.storage import StorageError, write_text

OPTIONS, JOURNAL, ROWS = "evaluation.yaml", "journal.jsonl", "rows"
TABLE, PAGE = "table.json", "index.html"
_ENDPOINT = "endpoint."
"""Prefixes of matrix keys that are options of endpoints."""

ModelPath = Callable[[str], str]
"""Returns the directory or hub id of a run or model with this specification."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Results of an evaluation."""

    folder: Path
    tables: dict[str, list[dict[str, str]]]
    """Table rows as text by column, best first, by environment."""
    rows: list[EvaluationRow]
    lines: list[Line]
    stopped: str = ""
    """The limit that left episodes unplayed, e.g. `max_cost = 1`; otherwise empty."""

    @property
    def failed(self) -> int:
        """Number of episodes that failed for other reasons than the model, and do not count."""
        return sum(line.failed for line in self.lines)


def load_evaluation(source: Path | Document | dict[str, Any], overrides: Sequence[str] = ()) -> Any:
    """Reads the options of an evaluation.

    Args:
        source: A YAML file, a result of `parse_yaml`, or a tree of options.
        overrides: Dotted assignments, e.g. `endpoint.concurrency=8`.

    Raises:
        ConfigError: An option is invalid; the message has one line per error.
    """
    layers = Layers({})
    if isinstance(source, Path | Document):
        layers.lay(read_yaml(source) if isinstance(source, Path) else source)
    else:
        layers.lay(from_one_place(source, "command line"))
    for text in overrides:
        layers.lay(parse_override(text))
    return validate(EvaluationConfig, layers.tree, layers.place_of)


def evaluate(
    options: EvaluationConfig,
    infra: InfraConfig,
    folder: Path,
    model_path: ModelPath,
    *,
    rerun_failed: bool = False,
) -> Evaluated:
    """Plays missing episodes, and writes the tables and the page.

    Args:
        options: Options of the evaluation.
        infra: Infrastructure of models with weights and of environments.
        folder: Folder of the evaluation, which continues if it exists.
        model_path: Resolves models that are neither hosted nor scripts.
        rerun_failed: Whether to retry requests of rows in which an endpoint failed.

    Raises:
        ConfigError: A model, an environment or a price is invalid; nothing is requested then.
        EndpointError: An endpoint rejects its key, or does not know its model.
        JournalError: Another process is using this folder.
    """
    prices = load_prices(options.prices)
    rows = check_rows(options, model_path, folder)
    _check(options, prices, rows)
    progress.note(f"{folder}: `vagen eval {folder}` continues it")
    journal = Journal(folder / JOURNAL, retry_failures=rerun_failed)
    try:
        write_text(folder / OPTIONS, dump_yaml(options))
        budget = Budget(options.max_cost, options.max_tokens)
        for model, tokens in journal.spent.items():
            budget.add(tokens, prices.price(model))
        stage = EvaluationContext(options, infra, journal, prices, budget)
        _probe(stage, rows, rerun_failed)
        # Hosted models last, so that other errors occur before any costs.
        for row in sorted(rows, key=lambda row: row.hosted is not None):
            if not _is_played(stage, row, rerun_failed):
                progress.note(f"{row.environment}: {row.entry.label}")
                stage.play(row)
        return _report(options, prices, rows, folder)
    finally:
        journal.close()


def check_rows(
    options: EvaluationConfig, model_path: ModelPath, folder: Path = Path()
) -> list[EvaluationRow]:
    """The rows of the evaluation; does not need keys of endpoints.

    Raises:
        ConfigError: A model, an environment or the baseline is invalid.
    """
    rows = list(_rows(options, folder, model_path))
    labels = [entry.label for entry in options.models]
    if options.baseline is not None and options.baseline not in labels:
        raise ConfigError(f"`baseline`: {unknown_name('model', options.baseline, labels)}")
    return rows


def load_environment(entry: EvaluationEnvironment, *, check: bool = False) -> ExperimentConfig:
    """The experiment of an entry; for a run its own.

    Args:
        entry: Entry with the name of an experiment.
        check: Whether to check the experiment for training, and not only its environments.
    """
    return load_experiment(experiment_file(entry), entry.overrides, check=check)


def experiment_file(entry: EvaluationEnvironment) -> Document:
    """Content of the experiment's file, unchecked.

    Raises:
        ConfigError: The file does not exist, or is not YAML.
    """
    named = entry.experiment
    if isinstance(named, dict):
        return from_one_place(named, "the evaluation")
    for place in (Path(named), Path(InfraConfig().output_dir) / named):
        if (place / layout.EXPERIMENT).is_file():
            return read_yaml(place / layout.EXPERIMENT)
    return read_yaml(find_file(named, "experiments"))


def _rows(
    options: EvaluationConfig, folder: Path, model_path: ModelPath
) -> Iterator[EvaluationRow]:
    """All rows: every model in every environment.

    Raises:
        ConfigError: Two rows have the same name, or there are no rows.
    """
    if not options.models or not options.environments:
        raise ConfigError("an evaluation needs `environments` and `models`, at least one of each")
    for given in options.models:
        for name in given.environments or ():
            if name not in options.environments:
                unknown = unknown_name("environment", name, options.environments)
                raise ConfigError(f"model {given.label}: {unknown}")
    paths = {
        entry.model: model_path(entry.model)
        for entry in options.models
        if entry.model not in SCRIPTED and parse_spec(entry.model) is None
    }
    for key, name, entry, endpoint in _expanded(options):
        models = [each for each in options.models if key in (each.environments or [key])]
        labels = [slug(each.label) for each in models]
        if twice := {label for label in labels if labels.count(label) > 1}:
            raise ConfigError(
                f"two models are called {', '.join(sorted(twice))}: give them a `name` each"
            )
        config = load_environment(entry, check=any(each.model in paths for each in models))
        for given in models:
            model = given.model_copy(update={"endpoint": given.endpoint | endpoint})
            endpoint_options(options.endpoint, model.endpoint, model.label)
            yield EvaluationRow(
                environment=name,
                config=config,
                entry=model,
                folder=folder / ROWS / slug(name) / slug(model.label),
                model_path=paths.get(model.model),
            )


def _expanded(
    options: EvaluationConfig,
) -> Iterator[tuple[str, str, EvaluationEnvironment, dict[str, Any]]]:
    """Environments by name, with every combination of the matrix and its options of endpoints."""
    for name, entry in options.environments.items():
        ids = [*load_environment(entry).envs] if any("*" in key for key in options.matrix) else []
        for values in itertools.product(*options.matrix.values()):
            chosen = dict(zip(options.matrix, values, strict=True))
            endpoint = {
                key.removeprefix(_ENDPOINT): value
                for key, value in chosen.items()
                if key.startswith(_ENDPOINT)
            }
            words = [
                f"{key.replace('*', config_id)}={json.dumps(value)}"
                for key, value in chosen.items()
                if not key.startswith(_ENDPOINT)
                for config_id in (ids if "*" in key else [""])
            ]
            place = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in chosen.items())
            yield (
                name,
                f"{name} {place}".strip(),
                EvaluationEnvironment(
                    experiment=entry.experiment, overrides=[*entry.overrides, *words]
                ),
                endpoint,
            )


def _check(options: EvaluationConfig, prices: Prices, rows: Sequence[EvaluationRow]) -> None:
    """Checks early for errors that would occur after other rows have been paid for.

    Raises:
        ConfigError, EndpointError: The message says how to fix it.
    """
    for entry in options.models:
        own = endpoint_options(options.endpoint, entry.endpoint, entry.label)
        hosted = None if entry.model in SCRIPTED else parse_spec(entry.model)
        if hosted is None:
            continue
        open_chat(hosted, own)
        if options.max_cost is not None and prices.price(entry.model) is None:
            raise ConfigError(
                f"`max_cost` needs a price of {entry.model}: add it to the price file "
                f"({options.prices or '`prices: FILE`'}), or use `max_tokens`"
            )
    for row in rows:
        if row.hosted is not None and row.config.rollout_manager.thinking_budget is not None:
            raise ConfigError(
                f"{row.environment}: `rollout_manager.thinking_budget` cannot be kept with "
                f"{row.entry.label}: no more can be put into the answer of a hosted model than it "
                "writes; set it to null, and what the endpoint offers in `endpoint.extra_body`"
            )
        if row.model_path is not None:
            from vagen.models.files import check_model

            check_model(row.model_path)


def _probe(stage: EvaluationContext, rows: Sequence[EvaluationRow], rerun_failed: bool) -> None:
    """Finds hosted models without any answer in the journal whose address does not respond."""
    options = stage.options
    for entry in {row.entry.label: row.entry for row in rows if row.hosted}.values():
        unplayed = [row for row in rows if row.entry.label == entry.label]
        unplayed = [row for row in unplayed if not _is_played(stage, row, rerun_failed)]
        hosted = parse_spec(entry.model)
        if hosted is None or not unplayed or entry.model in stage.journal.spent:
            continue
        own = endpoint_options(options.endpoint, entry.endpoint, entry.label)
        brief = {"timeout": min(own.timeout, 10.0), "retries": min(own.retries, 3)}
        own = own.model_copy(update=brief)
        if reason := asyncio.run(unreachable(open_chat(hosted, own))):
            progress.note(f"{entry.label}: {reason}; it does not play")
            stage.unreachable[entry.label] = reason


def _is_played(stage: EvaluationContext, row: EvaluationRow, rerun_failed: bool) -> bool:
    """Whether a row is complete and matches the current options."""
    try:
        results = read_results(row.folder)
    except StorageError:
        return False
    if results.get("unplayed") or (rerun_failed and results.get("failed")):
        return False
    return results.get("digest") == stage.digest(row)


def _report(
    options: EvaluationConfig, prices: Prices, rows: Sequence[EvaluationRow], folder: Path
) -> Evaluated:
    """Writes table, exports and page."""
    first = options.baseline or options.models[0].label
    played = {row.folder for row in rows}
    lines = []
    for row in rows:
        baseline_folder = row.folder.parent / slug(first)
        compared = baseline_folder != row.folder and baseline_folder in played
        baseline = read_results(baseline_folder)["by_level"] if compared else None
        line = read_line(row.folder, row.environment, row.entry.label, prices, baseline)
        page = (row.folder / layout.REPORT).relative_to(folder)
        lines.append(replace(line, report=page.as_posix()))
    by_environment: dict[str, list[Line]] = {}
    for line in ranked(lines):
        by_environment.setdefault(line.environment, []).append(line)
    order = dict.fromkeys(row.environment for row in rows)
    tables = {
        name: [cells(line, options.attempts, prices.currency) for line in by_environment[name]]
        for name in order
    }
    content = {
        "baseline": first,
        "prices": prices.version,
        "currency": prices.currency,
        "lines": [asdict(line) for line in lines],
    }
    write_text(folder / TABLE, json.dumps(content, indent=2) + "\n")
    for suffix, write in (("csv", as_csv), ("md", as_markdown), ("tex", as_latex)):
        write_text(folder / f"table.{suffix}", write(tables))
    boards = {
        name: [
            LeaderboardEntry(text, line.success, line.ci95, line.cost, line.report, line.remark)
            for text, line in zip(tables[name], by_environment[name], strict=True)
        ]
        for name in order
    }
    facts = {
        "levels": options.levels,
        "attempts": str(options.attempts),
        "compared with": first,
        "prices": prices.version,
    }
    write_leaderboard(folder / PAGE, title=options.name, boards=boards, facts=facts)
    limits = {"max_cost": options.max_cost, "max_tokens": options.max_tokens}
    set_limits = " and ".join(f"{k} = {v:g}" for k, v in limits.items() if v is not None)
    stopped = set_limits if any(line.unplayed for line in lines) else ""
    return Evaluated(folder, tables, list(rows), lines, stopped)


def slug(label: str) -> str:
    """A label as a folder's name."""
    return re.sub(r"[^\w.=-]+", "-", label).strip("-.") or "row"
