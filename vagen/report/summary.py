"""Head of the viewer: success with its interval, and counts of what went wrong."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from vagen.rollout.types import Status, Trajectory
from vagen.tracking.stats import success_ci95


@dataclass(frozen=True, slots=True)
class IntervalBar:
    """A 95 % interval and its point, in percent of the width of a bar."""

    low: float
    point: float
    width: float


@dataclass(frozen=True, slots=True)
class SummaryCard:
    """One figure of the head."""

    name: str
    value: str
    detail: str
    hint: str
    interval: IntervalBar | None = None


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """Results of the trajectories of one environment configuration."""

    name: str
    count: int
    success: str
    interval: str
    score: str


def summary_cards(trajectories: Sequence[Trajectory]) -> list[SummaryCard]:
    """Figures of a batch; a judge's mean is over judged turns only, and says how many they are."""
    answers = [turn for trajectory in trajectories for turn in trajectory.turns]
    turns = [turn for turn in answers if not turn.summary]
    count = len(trajectories)
    truncated = sum(item.truncated for item in trajectories)
    tokens = sum(item.status == Status.TRUNCATED_TOKENS for item in trajectories)
    errors = sum(item.status == Status.ENV_ERROR for item in trajectories)
    invalid = sum(
        not (turn.parsed.format_correct and turn.metrics.action_is_valid) for turn in turns
    )
    sampled = sum(int(row.loss_mask.sum()) for item in trajectories for row in item.rows)
    cards = [
        _success_card(trajectories),
        SummaryCard(
            "mean score",
            _mean([item.score for item in trajectories]),
            "env + format",
            "Mean over trajectories of the sum of the environment's rewards",
        ),
        SummaryCard(
            "turns / episode",
            _mean([sum(not turn.summary for turn in item.turns) for item in trajectories]),
            f"{len(turns):,} in all",
            "Model turns per episode, without summaries",
        ),
        SummaryCard(
            "tokens / turn",
            _mean([sampled / len(answers)]) if answers else "–",
            f"{sampled:,} sampled",
            "Sampled tokens per model turn or summary, the end-of-turn token included",
        ),
        SummaryCard(
            "truncated",
            str(truncated),
            f"{tokens} by the token budget" if tokens else _share(truncated, count),
            "Episodes ended by the turn, step or token limit",
        ),
        SummaryCard(
            "invalid turns",
            str(invalid),
            _share(invalid, len(turns)),
            "Turns whose layout or action was not valid",
        ),
        SummaryCard(
            "env errors",
            str(errors),
            _share(errors, count),
            "Episodes in which the environment failed; masked from training",
        ),
    ]
    for part in ("observation", "prediction"):
        scores = [getattr(turn.verdict, part, None) for turn in turns]
        judged = [score for score in scores if score is not None]
        if judged:
            detail = f"{len(judged)} of {len(turns)}"
            hint = (
                f"Mean verdict on what the agent says in <{part}>, over the turns that are judged"
            )
            cards.append(SummaryCard(f"judged {part}", _mean(judged), detail, hint))
    return cards


def config_rows(trajectories: Sequence[Trajectory]) -> list[ConfigRow]:
    """One row per environment configuration, by name."""
    rows = []
    for name in sorted({item.config_id for item in trajectories}):
        members = [item for item in trajectories if item.config_id == name]
        rates = _rates(members)
        low, high = success_ci95(rates)
        rows.append(
            ConfigRow(
                name=name,
                count=len(members),
                success=f"{fmean(rates):.1%}",
                interval=f"{low:.1%} – {high:.1%}",
                score=_mean([item.score for item in members]),
            )
        )
    return rows


def _success_card(trajectories: Sequence[Trajectory]) -> SummaryCard:
    count = len(trajectories)
    hint = "Success, mean over levels, with its 95 % interval"
    if not count:
        return SummaryCard("success", "–", "no trajectory", hint)
    successes, rates = sum(item.success for item in trajectories), _rates(trajectories)
    low, high = success_ci95(rates)
    return SummaryCard(
        name=f"success ({successes} of {count})",
        value=f"{fmean(rates):.1%}",
        detail=f"95 % interval {low:.1%} – {high:.1%}",
        hint=hint,
        interval=IntervalBar(100 * low, 100 * successes / count, 100 * (high - low)),
    )


def _mean(values: Iterable[float]) -> str:
    values = list(values)
    return f"{sum(values) / len(values):.2f}".replace("-", "−") if values else "–"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "–"


def _rates(trajectories: Sequence[Trajectory]) -> list[float]:
    """Success per level."""
    by_level: dict[str, list[bool]] = {}
    for item in trajectories:
        by_level.setdefault(item.group_id, []).append(item.success)
    return [fmean(found) for found in by_level.values()]
