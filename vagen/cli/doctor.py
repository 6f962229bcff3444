"""`vagen doctor`: checks that this machine and this model can train, one line per check."""

from argparse import Namespace

from rich.console import Console
from rich.text import Text

from vagen.cli import doctor_machine, doctor_model
from vagen.cli.common import load_configs
from vagen.cli.findings import CheckOutcome, CheckResult, Findings
from vagen.config import ExperimentConfig, InfraConfig
from vagen.plan.sizes import environments_here


def doctor(options: Namespace) -> int:
    """Prints the findings; returns 1 if one is bad."""
    experiment, infra = load_configs(options)
    console = Console()
    worst = 0
    for finding in examine(experiment, infra, cluster=options.cluster):
        console.print(_line(finding), soft_wrap=True)
        worst = max(worst, finding.verdict is CheckOutcome.BAD)
    return worst


def examine(experiment: ExperimentConfig, infra: InfraConfig, *, cluster: bool = False) -> Findings:
    """Yields all findings, also those of the cluster if the run uses one."""
    yield from doctor_machine.versions()
    yield from doctor_machine.folders(infra)
    yield from doctor_machine.devices(infra)
    yield from doctor_machine.mlflow_store(infra)
    yield from doctor_machine.store(infra)
    yield from doctor_model.service(infra)
    yield from doctor_model.environments(experiment, environments_here(infra))
    yield from doctor_model.model(experiment, environments_here(infra))
    yield from doctor_model.judge(experiment)
    if cluster or infra.kubernetes is not None:
        from vagen.cli import doctor_cluster

        yield from doctor_cluster.cluster(infra)


def _line(finding: CheckResult) -> Text:
    style = {
        CheckOutcome.GOOD: "green",
        CheckOutcome.WARNING: "yellow",
        CheckOutcome.BAD: "bold red",
    }
    line = Text(f"{finding.verdict} ", style=style[finding.verdict])
    line.append(f"{finding.subject:<14}", style="bold")
    line.append(finding.text, style="default")
    if finding.advice:
        line.append(f" → {finding.advice}", style="default")
    return line
