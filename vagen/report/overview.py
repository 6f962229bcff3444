"""The page of a run: curves, evaluations, which levels were gained and lost, what was measured.

As the trajectory viewer it needs no network; it links to the pages beside it in the run's folder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vagen.envs.images import png_url
from vagen.metrics import find
from vagen.report.viewer import render
from vagen.storage import write_text


@dataclass(frozen=True, slots=True)
class EvaluationLink:
    """An evaluation, and the address of its page relative to the run's."""

    name: str
    split: str
    levels: int
    success: float
    ci95: tuple[float, float] | None
    address: str


@dataclass(frozen=True, slots=True)
class Headline:
    """Success before and after, on the levels of one split."""

    split: str
    levels: int
    before: float
    after: float
    gain: float
    ci95: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Course:
    """A level as played by one policy."""

    policy: str
    solved: bool
    frames: Sequence[bytes]
    """PNG, in order."""
    answer: str
    """Answer to the first observation."""


@dataclass(frozen=True, slots=True)
class LevelPicture:
    """A level's first frame."""

    level: str
    """Hash of its content."""
    png: bytes
    """Empty where the level is shown as text."""


@dataclass(frozen=True, slots=True)
class Flips:
    """Levels of a split that one policy solves and another does not."""

    split: str
    before: str
    after: str
    gained: Sequence[LevelPicture]
    lost: Sequence[LevelPicture]
    example: Sequence[Course]
    """One level as played before and after; the first that was gained, if any was."""
    address: str
    """Page of the later evaluation."""
    page: str
    """Page with a slider over the evaluations."""


@dataclass(frozen=True, slots=True)
class Difficulty:
    """Success on the levels of one difficulty."""

    difficulty: float
    levels: int
    success: Sequence[float]
    """One value per evaluation."""


@dataclass(frozen=True, slots=True)
class ByDifficulty:
    """Success by how hard levels are, in one environment."""

    env: str
    meaning: str
    """Meaning of the number."""
    names: Sequence[str]
    """Names of the evaluations."""
    rows: Sequence[Difficulty]


def write_overview(
    path: Path,
    *,
    title: str,
    facts: Mapping[str, str],
    curves: Path | None,
    headline: Headline | None,
    evaluations: Sequence[EvaluationLink],
    flips: Sequence[Flips],
    difficulties: Sequence[ByDifficulty],
    metrics: Mapping[str, float],
    refresh: int | None = None,
) -> Path:
    """Writes the page and returns its path.

    Args:
        path: The file; it appears whole.
        title: Heading.
        facts: Names and values beside it.
        curves: A PNG file; the page holds it.
        headline: Headline of the newest evaluation of a split; None before there are two.
        evaluations: In order.
        flips: Per split with two evaluations.
        difficulties: Tables.
        metrics: Metrics of the last iteration.
        refresh: Seconds until the browser loads it again; None never.
    """
    told = ((name, value, find(name)) for name, value in metrics.items())
    page = render(
        "overview.html.j2",
        ("report.css", "overview.css"),
        title=title,
        facts=facts,
        curves=png_url(curves.read_bytes()) if curves else "",
        headline=headline,
        evaluations=evaluations,
        flips=flips,
        difficulties=difficulties,
        metrics=[
            {"name": name, "value": f"{value:.4g}", "unit": m.unit, "meaning": m.meaning}
            for name, value, m in told
            if m is not None
        ],
        refresh=refresh,
        uri=png_url,
    )
    return write_text(path, page)
