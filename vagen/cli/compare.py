"""`vagen compare`."""

import time
from argparse import Namespace
from pathlib import Path

from vagen.cli.common import command, new_folder
from vagen.cli.main import UsageError
from vagen.config.infra import InfraConfig

COMPARISONS = "comparisons"


def compare(options: Namespace) -> None:
    """Compares trainings over their seeds, and prints the table."""
    from vagen.compare import compare as compare_runs
    from vagen.compare import read_mlflow, read_runs
    from vagen.progress import close

    if not options.runs and not options.from_mlflow:
        raise UsageError("name runs, a folder that holds runs, or --from-mlflow EXPERIMENT")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = Path(InfraConfig().output_dir) / COMPARISONS / stamp
    if options.to:
        folder = new_folder(Path(options.to))
    try:
        runs = read_runs(options.runs)
    finally:
        close()
    for experiment in options.from_mlflow:
        runs += read_mlflow(experiment)
    if runs and not any(run.history or run.by_level for run in runs):
        raise UsageError(
            f"nothing to compare: none of {', '.join(run.name for run in runs)} has been evaluated "
            "yet; a training evaluates after its warm start and at its end"
        )
    page = compare_runs(
        runs,
        by=options.by,
        over=options.over,
        folder=folder,
        baseline=options.baseline,
        price_per_hour=options.price_per_hour,
    )
    print((page.parent / "table.md").read_text())
    print(f"{page}  ({command('view', page.parent)})")
