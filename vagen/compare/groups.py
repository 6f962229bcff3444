"""Groups runs by method, with one run per seed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vagen.compare.reading import ComparisonError, RunSummary
from vagen.config.errors import unknown_name

_NO_METHOD = ("name", "infra.", "trainer.project_name")
"""Options that do not define a method."""


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one method, sorted by seed."""

    label: str
    runs: tuple[RunSummary, ...]
    seeds: tuple[str, ...]
    """The value of each run's replication key."""


def group(runs: Sequence[RunSummary], by: Sequence[str], over: str) -> list[Group]:
    """Groups runs, in the order of each group's first run.

    Args:
        runs: All runs.
        by: Keys whose values define a group; if empty, all runs are one group.
        over: Key that differs within a group.

    Raises:
        ComparisonError: A key does not exist, or two runs of a group have the same seed.
    """
    known = {key for run in runs for key in run.options}
    for key in (*by, over):
        if key not in known:
            raise ComparisonError(unknown_name("key", key, known))
    members: dict[str, list[RunSummary]] = {}
    for run in runs:
        members.setdefault(_label(run, by), []).append(run)
    return [_in_order(label, found, over) for label, found in members.items()]


def keys_of_methods(runs: Sequence[RunSummary], over: str) -> list[str]:
    """Smallest set of options that distinguishes the methods; prefers `preset`."""
    differing = [key for key in differences(runs) if key != over and not key.startswith(_NO_METHOD)]
    differing.sort(key=lambda key: key != "preset")
    whole, chosen = _parts(runs, differing), []
    for key in differing:
        if _parts(runs, chosen) < whole and _parts(runs, [*chosen, key]) > _parts(runs, chosen):
            chosen.append(key)
    return chosen


def differences(runs: Iterable[RunSummary]) -> list[str]:
    """Keys whose values differ between runs, in the order of the configuration."""
    runs = list(runs)
    keys = dict.fromkeys(key for run in runs for key in run.options)
    return [key for key in keys if len({run.options.get(key) for run in runs}) > 1]


def unequal_within(groups: Sequence[Group], over: str) -> dict[str, list[str]]:
    """Options other than `over` that differ within a group, by its label."""
    found = {one.label: [key for key in differences(one.runs) if key != over] for one in groups}
    return {
        label: kept
        for label, keys in found.items()
        if (kept := [key for key in keys if not key.startswith(_NO_METHOD)])
    }


def _in_order(label: str, runs: Sequence[RunSummary], over: str) -> Group:
    by_seed: dict[str, RunSummary] = {}
    for run in runs:
        seed = run.options.get(over, "")
        if seed in by_seed:
            twice = (by_seed[seed], run)
            keys = " or ".join(f"--by {key}" for key in keys_of_methods(twice, over))
            raise ComparisonError(
                f"two runs of {label} have {over} = {seed}: {twice[0].source} and {run.source}; "
                f"leave one out{keys and ', or distinguish them with '}{keys}"
            )
        by_seed[seed] = run
    seeds = tuple(sorted(by_seed, key=lambda seed: (len(seed), seed)))
    return Group(label, tuple(by_seed[seed] for seed in seeds), seeds)


def _label(run: RunSummary, by: Sequence[str]) -> str:
    values = [_value(run, key) for key in by]
    if len(by) == 1 and by[0] == "preset":
        return values[0]
    parts = [f"{_short(key, by)}={value}" for key, value in zip(by, values, strict=True)]
    return " ".join(parts) or "all runs"


def _value(run: RunSummary, key: str) -> str:
    """Value of a key, or of all options below it."""
    below = {
        k.removeprefix(f"{key}."): v for k, v in run.options.items() if k.startswith(f"{key}.")
    }
    listed = ", ".join(f"{name}: {value}" for name, value in below.items())
    return run.options.get(key, f"{{{listed}}}" if below else "")


def _short(key: str, keys: Sequence[str]) -> str:
    """The shortest suffix of a key that is unique among the keys."""
    words, others = key.split("."), [f".{other}" for other in keys if other != key]
    ends = [".".join(words[first:]) for first in range(len(words) - 1, 0, -1)]
    return next((end for end in ends if not any(o.endswith(f".{end}") for o in others)), key)


def _parts(runs: Sequence[RunSummary], keys: Sequence[str]) -> int:
    """Number of groups that the keys define."""
    return len({tuple(run.options.get(key) for key in keys) for run in runs})
