"""The sweep's file: parameters, sampler, and early stopping."""

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from vagen.config import ExperimentConfig
from vagen.config.base import ConfigError, Section, config_digest
from vagen.config.errors import validate
from vagen.config.schema import ExperimentName
from vagen.config.yaml_io import read_yaml
from vagen.experiment.load import find_file, load_experiment

Scalar = bool | int | float | str | None
ParameterValues = Mapping[str, Scalar]
"""A value for each of the sweep's parameters."""

EXPERIMENT = "experiment"
"""The parameter for the experiment's name, which is not an option."""
_SEEDS = "write whole numbers from 0, such as 0-4 or 0,3,7"


class Range(Section):
    """Numbers from `low` to `high`, inclusive; integers if both are."""

    low: int | float
    high: int | float
    log: bool = False
    """Sample uniformly in the logarithm."""
    step: int | float | None = None
    """Sample only `low`, `low + step`, ..."""

    @model_validator(mode="after")
    def _ordered(self) -> "Range":
        if not self.low < self.high:
            raise ValueError(f"low is {self.low} and high {self.high}: low must be less than high")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError("with `log` the range begins above 0 and has no step")
        if self.step is not None and self.step <= 0:
            raise ValueError("step must be above 0")
        if self.is_integer and not isinstance(self.step, int | None):
            raise ValueError("step must be a whole number, as low and high are")
        return self

    @property
    def is_integer(self) -> bool:
        """Whether its values are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


class Asha(Section):
    """Asynchronous successive halving: only the best trials continue beyond a rung."""

    min_iterations: PositiveInt
    """First rung: number of iterations before the first comparison of validations."""
    reduction_factor: int = Field(default=3, ge=2)
    """One of this many trials continues from a rung; the next rung is this many times as far."""


class SweepConfig(Section):
    """A sweep: one YAML file under `experiments/sweeps/`."""

    name: ExperimentName
    """Name of the sweep's folder, and prefix of its runs' names."""
    experiment: str | None = None
    """The experiment of all trials: a name under `experiments/`, or a file. null: `experiment` is a
    parameter."""
    overrides: tuple[str, ...] = ()
    """Dotted assignments for all trials, e.g. `trainer.total_training_steps=20`."""
    parameters: dict[str, tuple[Scalar, ...] | Range] = Field(min_length=1)
    """Parameters by dotted key, or `experiment`: a list of values, or `{low, high}`. Seeds may be
    written `0-4`."""
    sampler: Literal["grid", "random", "tpe"] = "grid"
    """`grid`: every combination once; `random`: random values; `tpe`: values near successful ones
    (Tree-structured Parzen Estimator)."""
    trials: PositiveInt | None = None
    """Number of sampled trials; null for a grid."""
    seed: int = Field(default=0, ge=0)
    """Seed of the sampler and of the order of a grid."""
    asha: Asha | None = None
    """Early stopping; null runs every trial to its end."""

    @field_validator("parameters", mode="before")
    @classmethod
    def _readable(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: _parameter(key, each) for key, each in value.items()}

    @model_validator(mode="after")
    def _complete(self) -> "SweepConfig":
        if (self.experiment is None) == (EXPERIMENT not in self.parameters):
            raise ValueError("name the experiment once: as `experiment`, or among `parameters`")
        ranges = [key for key, each in self.parameters.items() if isinstance(each, Range)]
        if self.sampler == "grid" and ranges:
            raise ValueError(
                f"a grid needs a list of values for `{ranges[0]}`; or set sampler to random or tpe"
            )
        if (self.sampler == "grid") != (self.trials is None):
            raise ValueError(
                "`trials` says how many are drawn: a grid has none, random and tpe need it"
            )
        return self

    @property
    def size(self) -> int:
        """Number of trials."""
        lists = [each for each in self.parameters.values() if isinstance(each, tuple)]
        return self.trials or math.prod(len(values) for values in lists)

    def points(self) -> Iterator[ParameterValues]:
        """Every combination of a grid; for a sampler, one point for each value of a list."""
        lists = {
            key: (each.low,) if isinstance(each, Range) else each
            for key, each in self.parameters.items()
        }
        if self.sampler == "grid":
            for values in itertools.product(*lists.values()):
                yield dict(zip(lists, values, strict=True))
            return
        first = {key: values[0] for key, values in lists.items()}
        for key, values in lists.items():
            yield from ({**first, key: value} for value in values)

    def load(self, point: ParameterValues) -> ExperimentConfig:
        """The experiment of a trial.

        Raises:
            ConfigError: The experiment is invalid.
        """
        varied = [f"{key}={json.dumps(value)}" for key, value in point.items() if key != EXPERIMENT]
        source = point.get(EXPERIMENT) or self.experiment
        return load_experiment(str(source), [*self.overrides, *varied])


def load_sweep(source: str | Path, *, name: str | None, overrides: Sequence[str]) -> SweepConfig:
    """Reads a sweep's file.

    Args:
        source: A YAML file, or the name of one under `experiments/sweeps/`.
        name: Replaces the file's name.
        overrides: Overrides of the experiments, after the file's.

    Raises:
        ConfigError: An option is invalid; the message has one line per error.
    """
    document = read_yaml(find_file(source, "experiments/sweeps"))
    config = validate(
        SweepConfig, document.tree | ({"name": name} if name else {}), document.places.get
    )
    return config.model_copy(update={"overrides": (*config.overrides, *overrides)})


def seeds_of(text: str) -> tuple[int, ...]:
    """Parses a list of seeds.

    >>> seeds_of("0-2,7")
    (0, 1, 2, 7)

    Raises:
        ConfigError: It has no seed, or one twice.
    """
    found: list[int] = []
    for part in str(text).split(","):
        low, dash, high = (word.strip() for word in part.partition("-"))
        if not (low.isdecimal() and (high.isdecimal() if dash else True)):
            raise ConfigError(f"{text!r} names no seeds: {_SEEDS}")
        found += range(int(low), int(high or low) + 1)
    if not found or len(set(found)) < len(found):
        raise ConfigError(f"{text!r} names no seed, or one twice: {_SEEDS}")
    return tuple(found)


def check_sweep(
    config: SweepConfig, check: Callable[[ExperimentConfig], None] = lambda _: None
) -> str:
    """Checks all experiments before anything is computed, also by `check`.

    Returns:
        Digest of the experiments, which a resumed sweep compares.

    Raises:
        ConfigError: A trial is invalid; the message names its values.
    """
    digests = []
    for point in config.points():
        try:
            experiment = config.load(point)
            check(experiment)
            if config.asha or config.sampler == "tpe":
                _check_validated(config, experiment)
        except ConfigError as error:
            raise ConfigError(f"with {described(point)}: {error}") from None
        digests.append(config_digest(experiment))
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def described(point: ParameterValues) -> str:
    """A point on one line: `preset=token_ppo seed=1`."""
    return " ".join(f"{key}={point[long]}" for long, key in short_keys(point).items())


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Maps each key to its last part if that is unique.

    >>> short_keys(["actor_rollout_ref.actor.optim.lr", "algorithm.lam"])
    {'actor_rollout_ref.actor.optim.lr': 'lr', 'algorithm.lam': 'lam'}
    """
    last = {key: key.rpartition(".")[2] for key in keys}
    words = list(last.values())
    return {key: word if words.count(word) == 1 else key for key, word in last.items()}


def _check_validated(config: SweepConfig, experiment: ExperimentConfig) -> None:
    trainer = experiment.trainer
    validated = [
        number + 1
        for number in range(trainer.total_training_steps)
        if trainer.validates_after(number)
    ]
    if not validated:
        raise ConfigError(
            "trials are chosen by their success on the validation levels, and there is no "
            "validation: set trainer.test_freq, or trainer.select=best_validation"
        )
    if config.asha and config.asha.min_iterations > validated[-1]:
        raise ConfigError(
            f"asha.min_iterations is {config.asha.min_iterations}, and the last validation is "
            f"after iteration {validated[-1]}: make it less"
        )


def _parameter(key: str, value: Any) -> tuple[Scalar, ...] | Range:
    if key.startswith("infra."):
        raise ValueError(f"`{key}`: a sweep varies what is learnt, not where it runs")
    if key == "seed" and isinstance(value, str | int):
        return seeds_of(str(value))
    if isinstance(value, Range):
        return value
    if isinstance(value, dict):
        return validate(Range, value, prefix=("parameters", key))
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"`{key}` is {value!r}; write a list of values, or {{low: 1, high: 9}}")
    for each in value:
        if not isinstance(each, Scalar):
            raise ValueError(f"`{key}` has the value {each!r}; only numbers, texts and null vary")
    if len({json.dumps(each) for each in value}) < len(value):
        raise ValueError(f"`{key}` has a value twice")
    return tuple(value)
