"""`vagen plan`: what would run, how long the contexts are, and whether it fits."""

import sys
from argparse import Namespace

from rich.console import Console
from rich.table import Table

from vagen.cli.common import load_configs
from vagen.cli.main import USER_ERROR
from vagen.plan.parts import DoesNotFitError, check_output_dir, plan_parts


def plan(options: Namespace) -> int:
    """Prints what would run; where it cannot fit, the refusal comes first."""
    if options.engine:
        options.infra_overrides.append(f"engine={options.engine}")
    experiment, infra = load_configs(options)
    check_output_dir(infra)
    console = Console()
    parts: list[Table | str] = []
    code = 0
    with console.status("draws levels and counts their tokens"):
        try:
            parts.extend(plan_parts(experiment, infra))  # keeps what comes before an error
        except DoesNotFitError as error:
            print(f"error: {error}\n", file=sys.stderr)
            code = USER_ERROR
    for part in parts:
        if isinstance(part, str):  # as it is, in lines of any length
            console.print(part, markup=False, highlight=False, soft_wrap=True)
        else:
            console.print(part)
    return code
