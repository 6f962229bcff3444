"""`vagen eval EXPERIMENT --model SPEC ...`: several models, hosted ones among them."""

import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from vagen.cli.common import command, model_path
from vagen.cli.main import UsageError
from vagen.config.yaml_io import read_yaml
from vagen.experiment.load import load_infra
from vagen.run import layout
from vagen.run.layout import run_name

_OPTIONS = "evaluation.yaml"
_FLAGS = ("levels", "count", "attempts", "baseline", "prices", "max_cost", "max_tokens")
_SHOWN = ("model", "success", "95 %", "gain", "gain 95 %", "turns", "format", "observation")
_ALSO = ("prediction", "tokens in", "tokens out", "cost", "cost/solved", "failed")


def is_evaluation(path: Path) -> bool:
    """Whether it is an evaluation's folder, or a YAML file of one."""
    if path.is_dir():
        return (path / _OPTIONS).is_file()
    return path.is_file() and path.suffix in (".yaml", ".yml") and "models" in read_yaml(path).tree


def fetch_stored(options: Namespace) -> None:
    """Copies an evaluation from a store to this machine, if the URI names one."""
    from vagen.evaluation.in_store import fetch_evaluation

    infra = load_infra(options.infra, options.infra_overrides)
    name = run_name(options.model)
    folder = Path(options.to or Path(infra.output_dir) / layout.EVALUATIONS / name)
    if fetch_evaluation(options.model, infra, folder):
        options.model = str(folder)


def evaluate_models(options: Namespace) -> None:
    """Starts or continues an evaluation, and prints its tables."""
    from vagen.clients import EndpointError
    from vagen.evaluation import PAGE, evaluate, load_evaluation, record
    from vagen.progress import close, note
    from vagen.tracking import TrackingError

    target = Path(options.model)
    flags = {name: getattr(options, name) for name in _FLAGS}
    overrides = [f"{name}={value}" for name, value in flags.items() if value is not None]
    found = load_evaluation(_source(options, target), [*options.eval_overrides, *overrides])
    infra = load_infra(options.infra, options.infra_overrides)
    if options.to:
        folder = Path(options.to)
        if folder.exists() and not is_evaluation(folder):
            raise UsageError(f"{folder} exists and is no evaluation: choose another folder")
    elif target.is_dir() and is_evaluation(target):
        folder = target
    else:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        folder = Path(infra.output_dir) / layout.EVALUATIONS / f"{found.name}-{stamp}"
    try:
        evaluated = evaluate(
            found, infra, folder, model_path, rerun_failed=options.rerun == "failed"
        )
        try:
            record(evaluated, found, infra)
        except TrackingError as error:
            note(f"{error}; the evaluation is whole without it, vagen eval {folder} records it")
    finally:
        close()
    for name, lines in evaluated.tables.items():
        print(f"\n{name}")
        _print(lines)
    print()
    for line in evaluated.lines:
        if line.remark:
            print(f"{line.model} on {line.environment}: {line.remark}")
    if evaluated.failed:
        print(
            f"{evaluated.failed} episodes failed in their endpoint or environment and do not "
            f"count: vagen eval {folder} --rerun failed"
        )
    if evaluated.stopped:
        print(f"\nstopped at {evaluated.stopped}: raise it and go on, vagen eval {folder} ...")
    print(f"\n{folder / PAGE}  ({command('view', folder)})")
    silent = [line for line in evaluated.lines if line.failed and not line.episodes]
    if silent:
        names = ", ".join(f"{line.model} on {line.environment}" for line in silent)
        raise EndpointError(f"no episode counts of {names}")


def _source(options: Namespace, target: Path) -> Path | dict[str, Any]:
    """The options of the evaluation, before those of the command line."""
    if not is_evaluation(target):
        return {
            "name": Path(options.model).stem,
            "environments": {
                Path(options.model).stem: {
                    "experiment": options.model,
                    "overrides": options.overrides,
                }
            },
            "models": options.models,
        }
    for name, given in (("--model", options.models), ("overrides", options.overrides)):
        if given:
            raise UsageError(f"{target} says what is evaluated: put {name} into the file")
    return target / _OPTIONS if target.is_dir() else target


def _print(lines: list[dict[str, str]]) -> None:
    columns = [*_SHOWN, *_ALSO]
    columns[3:3] = [name for name in lines[0] if name.startswith("pass")]
    columns = [name for name in columns if any(line.get(name) for line in lines)]
    widths = [max(len(name), *(len(line[name]) for line in lines)) for name in columns]
    for cells in ({name: name for name in columns}, *lines):
        row = (cells[name].ljust(width) for name, width in zip(columns, widths, strict=True))
        print("  ".join(row).rstrip())
