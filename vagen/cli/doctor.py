"""`vagen doctor`: whether this machine and this model can train, one line per check."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from vagen.cli.common import load_configs
from vagen.config import ExperimentConfig, InfraConfig

if TYPE_CHECKING:
    from rich.text import Text


class Verdict(StrEnum):
    """How a check ended."""

    GOOD = "✓"
    WARNING = "!"
    BAD = "✗"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's."""

    verdict: Verdict
    subject: str
    text: str
    advice: str = ""


Findings = Iterator[Finding]


def good(subject: str, text: str) -> Finding:
    """Nothing to do."""
    return Finding(Verdict.GOOD, subject, text)


def warning(subject: str, text: str, advice: str) -> Finding:
    """It will run, perhaps not as meant."""
    return Finding(Verdict.WARNING, subject, text, advice)


def bad(subject: str, text: str, advice: str) -> Finding:
    """It cannot run."""
    return Finding(Verdict.BAD, subject, text, advice)


def doctor(options: Namespace) -> int:
    """Prints the findings; returns 1 if one is bad."""
    from rich.console import Console

    experiment, infra = load_configs(options)
    console = Console()
    worst = 0
    for finding in examine(experiment, infra, cluster=options.cluster):
        console.print(_line(finding), soft_wrap=True)
        worst = max(worst, finding.verdict is Verdict.BAD)
    return worst


def examine(experiment: ExperimentConfig, infra: InfraConfig, *, cluster: bool = False) -> Findings:
    """All findings, as they are made; of the cluster, too, if the run is to be on one."""
    from vagen.cli import doctor_judge, doctor_machine, doctor_model
    from vagen.cli.sizes import environments_here

    yield from doctor_machine.versions()
    yield from doctor_machine.folders(infra)
    yield from doctor_machine.devices(infra)
    yield from doctor_machine.mlflow_store(infra)
    yield from doctor_machine.store(infra)
    yield from doctor_model.service(infra)
    yield from doctor_model.environments(experiment, environments_here(infra))
    yield from doctor_model.model(experiment, environments_here(infra))
    yield from doctor_judge.judge(experiment)
    if cluster or infra.kubernetes is not None:
        from vagen.cli import doctor_cluster

        yield from doctor_cluster.cluster(infra)


def guarded(subject: str, advice: str, check: Callable[[], Findings]) -> Findings:
    """The findings of a check; an error that it raises is a bad one."""
    try:
        yield from check()
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        yield bad(subject, f"{type(error).__name__}: {reason}", advice)


def _line(finding: Finding) -> "Text":
    from rich.text import Text

    style = {Verdict.GOOD: "green", Verdict.WARNING: "yellow", Verdict.BAD: "bold red"}
    line = Text(f"{finding.verdict} ", style=style[finding.verdict])
    line.append(f"{finding.subject:<14}", style="bold")
    line.append(finding.text, style="default")
    if finding.advice:
        line.append(f" → {finding.advice}", style="default")
    return line
