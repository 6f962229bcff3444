"""Levels of a run, disjoint between training, validation and test."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from vagen.config.base import ConfigError
from vagen.config.schema import EnvSpec, ExperimentConfig
from vagen.envs import LevelRef, distinct_levels, env_config_digest
from vagen.rollout.types import NOTHING, SectionScores

SPLITS = ("train", "val", "test")
LEVELS_FILE = "levels.json"


@dataclass(frozen=True, slots=True)
class LevelSet:
    """Levels of one environment of the mixture."""

    config_id: str
    """Key of the environment under `envs`."""
    spec: EnvSpec
    env_config_digest: str
    splits: dict[str, list[LevelRef]]
    blind: SectionScores = NOTHING
    """Scores of the best constant text; empty without `judge.above_chance`."""

    def to_json(self) -> dict[str, object]:
        """The record in the `build` step."""
        return {
            "env_name": self.spec.env_name,
            "env_config_digest": self.env_config_digest,
            **{
                split: [[ref.seed, ref.level_hash, *filter(None, [ref.difficulty])] for ref in refs]
                for split, refs in self.splits.items()
            },
            **({} if self.blind == NOTHING else {"blind": asdict(self.blind)}),
        }


def draw_levels(
    config: ExperimentConfig, counts: Mapping[str, int | None], *, at_most: int | None = None
) -> list[LevelSet]:
    """Distinct levels of every environment.

    Args:
        config: The experiment.
        counts: Number of levels per split; None for the configured number.
        at_most: Upper limit of that number.

    Raises:
        LevelError: A split has fewer distinct levels than asked for.
        ConfigError: More levels are requested than the experiment has.
    """
    for config_id, spec in config.envs.items():
        for split, count in counts.items():
            if (count or 0) > (size := getattr(spec, f"{split}_size")):
                raise ConfigError(
                    f"{count:,} {split} levels are wanted and the experiment has {size:,}: ask for "
                    f"fewer, or set envs.{config_id}.{split}_size"
                )
    return [
        LevelSet(
            config_id,
            spec,
            env_config_digest(spec.env_name, spec.env_config),
            {
                split: distinct_levels(
                    spec.env_name,
                    spec.env_config,
                    split,
                    count or min(size := getattr(spec, f"{split}_size"), at_most or size),
                    with_difficulty=config.data.curriculum.enable,
                )
                for split, count in counts.items()
            },
        )
        for config_id, spec in config.envs.items()
    ]


def assert_disjoint(config_id: str, splits: Mapping[str, Sequence[LevelRef]]) -> None:
    """Checks that splits share no level.

    Raises:
        ConfigError: They do; the message names the level.
    """
    owner: dict[str, str] = {}
    for split, refs in splits.items():
        for ref in refs:
            other = owner.setdefault(ref.level_hash, split)
            if other != split:
                raise ConfigError(
                    f"envs.{config_id}: level {ref.level_hash[:12]} is in the splits {other} and "
                    f"{split}; an environment must draw each split's levels from its own share"
                )
