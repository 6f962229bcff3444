"""What the doctor's checks find: a line each, with a verdict and what would help."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum


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


def guarded(subject: str, advice: str, check: Callable[[], Findings]) -> Findings:
    """The findings of a check; an error that it raises is a bad one."""
    try:
        yield from check()
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        yield bad(subject, f"{type(error).__name__}: {reason}", advice)
