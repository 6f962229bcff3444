"""Compares runs and writes a page."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from vagen.compare.groups import Group, group, keys_of_methods, unequal_within
from vagen.compare.page import Comparison, write_comparison
from vagen.compare.reading import ComparisonError, RunSummary, read_runs
from vagen.compare.results import GroupResult, common_levels, costs, results
from vagen.config.errors import unknown_name
from vagen.storage import storage_errors


def compare(
    runs: Sequence[str | Path | RunSummary],
    *,
    by: str | Sequence[str] | None = None,
    over: str = "seed",
    folder: Path,
    baseline: str | None = None,
    price_per_hour: float | None = None,
    title: str = "Comparison",
) -> Path:
    """Compares trainings, and writes the page, the curves and the tables.

    >>> compare(["outputs/grpo-1", "outputs/ppo-1"], by="preset", folder=Path("comparison"))
    PosixPath('comparison/index.html')

    Args:
        runs: Folders of runs, names under the output folder, URIs in a store, folders that contain
            runs; or results of `read_runs` and `read_mlflow`.
        by: Option or options that define a method. None for the smallest set of options that
            distinguishes the runs.
        over: Option that differs among the trainings of one method.
        folder: Output folder, created if missing; an existing comparison is replaced.
        baseline: Method to compare others with; None for that of the first run.
        price_per_hour: Price of one GPU (on CPU: of the machine); None for the runs'
            `infra.gpu_hour_price`.
        title: Heading of the page.

    Returns:
        Path of the page.

    Raises:
        ComparisonError: There are no runs, no such option or method, two runs are the same
            training, or they were evaluated on different levels.
        StorageError: A store cannot be used, or a run's results were changed.
    """
    read = [one for one in runs if isinstance(one, RunSummary)]
    read += read_runs(one for one in runs if not isinstance(one, RunSummary))
    if price_per_hour is not None and not 0 <= price_per_hour < math.inf:
        raise ComparisonError(f"the price of an hour is {price_per_hour}; it must be at least 0")
    if not read:
        raise ComparisonError("a comparison needs runs: name their folders, or one that holds them")
    keys = keys_of_methods(read, over) if by is None else [by] if isinstance(by, str) else list(by)
    groups = group(read, keys, over)
    labels = [one.label for one in groups]
    if baseline is not None and baseline not in labels:
        raise ComparisonError(unknown_name("method", baseline, labels))
    first = baseline or labels[0]
    levels, in_all = common_levels(read)
    found = results(groups, levels, first)
    notes = list(_notes(groups, found, over, len(levels), in_all))
    shown = Comparison(
        title, groups, keys, over, first, len(levels), found, costs(groups, price_per_hour), notes
    )
    with storage_errors(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
    return write_comparison(shown, Path(folder))


def _notes(
    groups: Sequence[Group], found: Sequence[GroupResult], over: str, levels: int, in_all: int
) -> Iterator[str]:
    """Caveats about the figures."""
    if levels < in_all:
        yield (f"{levels} of {in_all} held-out levels are common to all runs; only these count.")
    for label, keys in unequal_within(groups, over).items():
        yield f"Runs of {label} differ in more than {over}: {', '.join(keys)}."
    for one in groups:
        missing = [run.name for run in one.runs if not run.by_level]
        if missing:
            yield f"Without a final evaluation, so in the curves only: {', '.join(missing)}."
    for result in found:
        if result.seeds == 1:
            yield (
                f"{result.label} has one {over}: no interval over {over}s exists. What is shown "
                "for it is how this one policy does on other levels."
            )
        elif result.success is not None and result.success.ci95 is None:
            yield f"Every {over} and level of {result.label} had one result: there is no interval."
        if (against := result.against) is None:
            continue
        if against.pairs < result.seeds:
            yield (
                f"{against.pairs} of {result.seeds} {over}s of {result.label} are the baseline's "
                "as well; "
                + ("its gain is of these." if against.pairs else "its gain is unpaired.")
            )
        elif against.pairs > 1 and against.gain.ci95 is None:
            yield (
                f"{result.label} differs equally from the baseline on every {over} and level: "
                "there is no interval."
            )
