"""The gate: a deployed agent plays held-out levels, and must not play worse than before."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from vagen.config.base import ConfigError
from vagen.config.infra import InfraConfig
from vagen.config.yaml_io import read_yaml
from vagen.evaluation import evaluate, load_evaluation
from vagen.run import layout
from vagen.run.run import Run
from vagen.tracking import paired_bootstrap


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an agent may be used, and why."""

    passed: bool
    reason: str
    success: float
    """Success of the deployed agent, 0 to 1."""
    levels: int


def play_levels(
    run: Run,
    url: str,
    model: str,
    folder: Path,
    infra: InfraConfig,
    *,
    count: int | None,
    token_env: str | None,
) -> tuple[Path, int]:
    """Plays the run's held-out levels with an agent behind OpenAI's chat completions.

    Args:
        run: The run; its prompts, levels and sampling of evaluations.
        url: Address of the API, such as `http://agent-lake.vagen.svc:8000/v1`.
        model: The agent's name in requests.
        folder: Folder of the evaluation, which continues if it exists.
        infra: Where environments run.
        count: Levels per environment; None for all.
        token_env: Environment variable with the API key; None for none.

    Returns:
        Folder of its results and episodes, and the number of episodes without an answer.

    Raises:
        EndpointError: The agent rejects the key, or has another name.
    """
    entry = {"model": f"openai:{model}@{url}", "name": model, "endpoint": {}}
    if token_env:
        entry["endpoint"] = {"api_key_env": token_env}
    experiment: Any = read_yaml(run.path / layout.EXPERIMENT).tree
    options = load_evaluation(
        {
            "name": folder.name,
            "environments": {run.experiment.name: {"experiment": experiment}},
            "models": [entry],
            "count": count,
        }
    )

    def refuse(spec: str) -> str:
        raise ConfigError(f"{spec} is not an address of an agent")

    evaluated = evaluate(options, infra, folder, refuse, rerun_failed=True)
    (row,) = evaluated.rows
    return row.folder, evaluated.failed


def judge(
    played: Mapping[str, float],
    failed: int,
    before: Mapping[str, Mapping[str, float] | None],
    seed: int = 0,
) -> Verdict:
    """Compares a deployed agent with others on the levels that it played.

    It fails if it is worse than one of them beyond chance (the 95 % interval of a paired gain is
    below zero), or can be compared with none.

    Args:
        played: Success by level of the deployed agent.
        failed: Its episodes without an answer; any fails.
        before: Success by level of each other, by its description; None if it is not known.
        seed: Seed of the bootstrap.

    Example:
        >>> levels = [f"lake/{n}" for n in range(8)]
        >>> judge(dict.fromkeys(levels, 0.0), 0, {"version 1": dict.fromkeys(levels, 1.0)}).passed
        False
    """
    success = fmean(played.values()) if played else 0.0
    if failed or not played:
        reason = f"{failed} episodes got no answer" if failed else "it played no level"
        return Verdict(False, reason, success, len(played))
    worse, reasons = [], []
    for name, results in before.items():
        shared = sorted(played.keys() & (results or {}).keys())
        if results is None or len(shared) < len(played):
            reasons.append(f"not compared with {name}, which has other levels")
            continue
        gain = paired_bootstrap(
            [results[x] for x in shared], [played[x] for x in shared], seed=seed
        )
        low, high = gain.ci95
        worse.append(high < 0)
        reasons.append(
            f"{'worse than' if worse[-1] else 'not worse than'} {name}: gain {gain.gain:+.3f}, "
            f"95 % interval {low:+.3f} to {high:+.3f}"
        )
    return Verdict(bool(worse) and not any(worse), "; ".join(reasons), success, len(played))
