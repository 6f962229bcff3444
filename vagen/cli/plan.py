"""`vagen plan`: what would run, how long the contexts are, and whether it fits."""

from argparse import Namespace

from rich.console import Console

from vagen.cli.common import load_configs
from vagen.plan.parts import plan_parts


def plan(options: Namespace) -> None:
    """Prints what would run; refuses what cannot fit."""
    if options.engine:
        options.infra_overrides.append(f"engine={options.engine}")
    experiment, infra = load_configs(options)
    console = Console()
    with console.status("draws levels and counts their tokens"):
        for part in plan_parts(experiment, infra):
            if isinstance(part, str):  # as it is, in lines of any length
                console.print(part, markup=False, highlight=False, soft_wrap=True)
            else:
                console.print(part)
