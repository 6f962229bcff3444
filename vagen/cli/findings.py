"""Results of the doctor's checks: one line each, with what would help."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum


class CheckOutcome(StrEnum):
    """Outcome of a check."""

    GOOD = "✓"
    WARNING = "!"
    BAD = "✗"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the doctor."""

    verdict: CheckOutcome
    subject: str
    text: str
    advice: str = ""


Findings = Iterator[CheckResult]


def good(subject: str, text: str) -> CheckResult:
    """Nothing to do."""
    return CheckResult(CheckOutcome.GOOD, subject, text)


def warning(subject: str, text: str, advice: str) -> CheckResult:
    """It will run, perhaps not as intended."""
    return CheckResult(CheckOutcome.WARNING, subject, text, advice)


def bad(subject: str, text: str, advice: str) -> CheckResult:
    """It cannot run."""
    return CheckResult(CheckOutcome.BAD, subject, text, advice)


def guarded(subject: str, advice: str, check: Callable[[], Findings]) -> Findings:
    """The findings of a check; an error that it raises is a bad one."""
    try:
        yield from check()
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        yield bad(subject, f"{type(error).__name__}: {reason}", advice)
