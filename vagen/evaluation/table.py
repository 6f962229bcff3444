"""The table of an evaluation: success with uncertainty, costs, world-model scores."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from vagen.clients.chat import TokenUsage
from vagen.evaluation.prices import Prices
from vagen.rollout.types import Status
from vagen.run.folder import read_results
from vagen.storage import read_manifest
from vagen.tracking import levels_needed, paired_bootstrap
from vagen.tracking.stats import Interval


@final
@dataclass(frozen=True, slots=True)
class Gain:
    """Mean difference of success from the baseline's, on the levels that both have played."""

    gain: float
    ci95: Interval
    levels: int
    levels_needed: int | None
    """Number of levels to detect the observed difference."""


@dataclass(frozen=True, slots=True)
class Line:
    """One model in one environment. Unknown values are None."""

    environment: str
    model: str
    """Name of the row."""
    spec: str
    levels: int
    episodes: int
    """Number of episodes that count."""
    success: float | None
    """Mean over levels of the success rate of attempts."""
    ci95: Interval | None
    pass_at: dict[str, float]
    pass_at_ci95: dict[str, Interval]
    pass_all: dict[str, float]
    pass_all_ci95: dict[str, Interval]
    against: Gain | None
    """Gain over the baseline; None for the baseline itself."""
    turns: float | None
    format_correct: float | None
    """Share of turns in the right layout."""
    invalid: float | None
    """Share of turns with actions that could not be parsed."""
    observation: float | None
    """Mean score of the agent's descriptions, over turns in the right layout."""
    prediction: float | None
    """Mean score of the agent's predictions, likewise."""
    tokens: TokenUsage | None
    """Tokens of all requests, including failed episodes; None for a model that is not hosted."""
    cost: float | None
    cost_per_solved: float | None
    failed: int
    """Number of episodes that failed for other reasons than the model; they do not count."""
    unplayed: int
    """Number of episodes that did not fit into the budget."""
    forms: dict[str, int] = field(default_factory=dict)
    """Number of answers other than plain text, by form."""
    remark: str = ""
    """Why episodes failed or answers lack the layout; otherwise empty."""
    report: str = ""
    """Path of the page with its episodes, relative to the table."""


def read_line(
    folder: Path, environment: str, label: str, prices: Prices, baseline: Mapping[str, float] | None
) -> Line:
    """Table line of a committed row.

    Args:
        folder: Folder of the row.
        environment: Name of the environment in the evaluation.
        label: Name of the row.
        prices: Prices of hosted models.
        baseline: Success by level of the baseline; None for no comparison.
    """
    results, payload = read_results(folder), read_manifest(folder).payload
    metrics, split, by_level = payload["metrics"], results["split"], results["by_level"]
    played = payload["counts"]["trajectories"]
    errors = int(metrics.get(f"{split}/{Status.ENV_ERROR}", 0))
    valid = metrics.get(f"{split}/action_is_valid")
    tokens = TokenUsage(**results["tokens"]) if results.get("tokens") else None
    price = prices.price(results["model"])
    cost = price.of(tokens) if tokens is not None and price is not None else None
    solved = metrics.get(f"{split}/success", 0.0) * (played - errors)
    failed, remarks = results.get("failed", {}), []
    if failed:
        [(reason, count)] = Counter(failed.values()).most_common(1)
        remarks.append(f"{count} episodes of {results['model']} failed, {reason}")
    if results.get("advice"):
        remarks.append(results["advice"])
    return Line(
        environment=environment,
        model=label,
        spec=results["model"],
        levels=results["levels"],
        episodes=played - errors,
        success=results["success"] if by_level else None,
        ci95=results["ci95"],
        **{
            name: results.get(name, {})
            for name in ("pass_at", "pass_at_ci95", "pass_all", "pass_all_ci95")
        },
        against=None if baseline is None else gain_over(baseline, by_level),
        turns=metrics.get(f"{split}/turns"),
        format_correct=metrics.get(f"{split}/format_correct"),
        invalid=None if valid is None else 1.0 - valid,
        observation=metrics.get("judge/observation"),
        prediction=metrics.get("judge/prediction"),
        tokens=tokens,
        cost=cost,
        cost_per_solved=cost / solved if cost is not None and solved else None,
        failed=errors + len(failed),
        unplayed=len(results.get("unplayed", ())),
        forms=results.get("forms", {}),
        remark="; ".join(remarks),
    )


def gain_over(baseline: Mapping[str, float], candidate: Mapping[str, float]) -> Gain | None:
    """The difference on common levels; None if there are none."""
    both = sorted(baseline.keys() & candidate.keys())
    if not both:
        return None
    before, after = [baseline[level] for level in both], [candidate[level] for level in both]
    found = paired_bootstrap(before, after, seed=0)
    return Gain(found.gain, found.ci95, len(both), levels_needed(before, after))


def cells(line: Line, attempts: int, currency: str) -> dict[str, str]:
    """A line as text by column; empty for unknown values."""
    against, tokens = line.against, line.tokens
    found = {
        "model": line.model,
        "success": number(line.success),
        "95 %": interval(line.ci95),
        "gain": number(against and against.gain, "+.3f"),
        "gain 95 %": interval(against and against.ci95),
        "levels needed": str((against and against.levels_needed) or ""),
        "turns": number(line.turns, ".2f"),
        "format": number(line.format_correct),
        "invalid": number(line.invalid),
        "observation": number(line.observation),
        "prediction": number(line.prediction),
        "tokens in": str(tokens.input) if tokens else "",
        "tokens out": str(tokens.output) if tokens else "",
        "cost": number(line.cost, ".4f", f" {currency}"),
        "cost/solved": number(line.cost_per_solved, ".5f", f" {currency}"),
        "failed": f"{line.failed}" + (f" (+{line.unplayed} unplayed)" if line.unplayed else ""),
    }
    if attempts > 1:
        k = str(attempts)
        found[f"pass@{k}"] = _with_interval(line.pass_at, line.pass_at_ci95, k)
        found[f"pass^{k}"] = _with_interval(line.pass_all, line.pass_all_ci95, k)
    return found


def ranked(lines: Sequence[Line]) -> list[Line]:
    """Lines sorted by success, best first."""
    return sorted(lines, key=lambda line: (-(line.success or 0.0), line.model))


def number(value: float | None, form: str = ".3f", unit: str = "") -> str:
    """A number as text; empty if unknown."""
    return "" if value is None else f"{value:{form}}{unit}"


def interval(found: Interval | None) -> str:
    """An interval as text; empty if there is none."""
    return "" if found is None else f"[{found[0]:.3f}, {found[1]:.3f}]"


def _with_interval(values: Mapping[str, float], intervals: Mapping[str, Interval], k: str) -> str:
    return f"{values[k]:.3f} {interval(intervals.get(k))}" if k in values else ""
