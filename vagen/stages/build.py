"""Environment build: the levels of every split, disjoint by level hash, recorded."""

import json
from dataclasses import dataclass
from typing import Any

from vagen.config.base import ConfigError
from vagen.config.schema import EnvSpec, ExperimentConfig
from vagen.envs import LevelRef, distinct_levels, env_config_digest
from vagen.judge.calibration.run import shortcomings
from vagen.service import environments_of
from vagen.stages import progress
from vagen.stages.judge import check_endpoints
from vagen.stages.run import Run, committed, result
from vagen.stages.tracking import tracker_of
from vagen.storage import commit_directory, verify_directory

SPLITS = ("train", "val", "test")


@dataclass(frozen=True, slots=True)
class LevelSet:
    """Levels of one environment of the mixture."""

    config_id: str
    spec: EnvSpec
    env_config_digest: str
    splits: dict[str, list[LevelRef]]


def build(run: Run) -> dict[str, Any]:
    """Draws distinct levels per split and proves that no level is in two of them.

    MLflow is opened first, and the judge's language model asked something: what cannot be recorded
    or judged fails before anything is computed.

    Raises:
        TrackingError: MLflow cannot be reached.
        JudgeUnavailable, EndpointError: The judge's language model does not answer.
        LevelError: A split has fewer distinct levels than asked for.
        ConfigError: Two splits share a level, or the judge is not as good as its calibration has
            to be.
    """
    tracker_of(run)
    _check_calibration(run.experiment)
    if committed(run.levels) is None:
        check_endpoints(run)
        sets: dict[str, dict[str, Any]] = {}
        metrics: dict[str, float] = {}
        for config_id, spec in run.experiment.envs.items():
            splits = {}
            sizes = {"train": spec.train_size, "val": spec.val_size, "test": spec.test_size}
            with progress.bar(f"levels of {config_id}", len(sizes)) as advance:
                for split, size in sizes.items():
                    splits[split] = distinct_levels(spec.env_name, spec.env_config, split, size)
                    advance(1)
            assert_disjoint(config_id, splits)
            env = environments_of(run.infra.environments).open(spec.env_name, spec.env_config)
            env.reset(seed=splits["train"][0].seed)
            env.close()
            sets[config_id] = {
                "env_name": spec.env_name,
                "env_config_digest": env_config_digest(spec.env_name, spec.env_config),
                "disjoint": True,
                **{
                    split: [[ref.seed, ref.level_hash] for ref in refs]
                    for split, refs in splits.items()
                },
            }
            metrics |= {f"build/{config_id}/{split}": len(refs) for split, refs in splits.items()}
        payload = {"metrics": metrics, "config_digest": run.config_digest, "disjoint": True}
        with commit_directory(run.levels, kind="levels", payload=payload) as folder:
            (folder / "levels.json").write_text(json.dumps(sets))
    return result(run.levels)


def _check_calibration(experiment: ExperimentConfig) -> None:
    found = shortcomings(experiment)
    if not found:
        return
    if experiment.judge.calibration.on_failure == "refuse":
        raise ConfigError(
            f"the judge is not good enough to start: {'; '.join(found)}. Calibrate it anew with "
            "`vagen judge calibrate`, or set judge.calibration.on_failure=warn"
        )
    for text in found:
        progress.note(f"calibration of the judge: {text}")


def assert_disjoint(config_id: str, splits: dict[str, list[LevelRef]]) -> None:
    """Refuses splits that share a level."""
    owner: dict[str, str] = {}
    for split, refs in splits.items():
        for ref in refs:
            other = owner.setdefault(ref.level_hash, split)
            if other != split:
                raise ConfigError(
                    f"envs.{config_id}: level {ref.level_hash[:12]} is in the splits {other} and "
                    f"{split}; an environment must draw each split's levels from its own share"
                )


def level_sets(config: ExperimentConfig, counts: dict[str, int | None]) -> list[LevelSet]:
    """Levels drawn without a run, for the splits of `counts`; None takes the configured number."""
    return [
        LevelSet(
            config_id,
            spec,
            env_config_digest(spec.env_name, spec.env_config),
            {
                split: distinct_levels(
                    spec.env_name, spec.env_config, split, count or getattr(spec, f"{split}_size")
                )
                for split, count in counts.items()
            },
        )
        for config_id, spec in config.envs.items()
    ]


def load_levels(run: Run) -> list[LevelSet]:
    """The levels that `build` committed, verified.

    Raises:
        CorruptArtifact: The folder was changed.
    """
    verify_directory(run.fetch(run.levels))
    sets = json.loads((run.levels / "levels.json").read_text())
    return [
        LevelSet(
            config_id,
            run.experiment.envs[config_id],
            content["env_config_digest"],
            {
                split: [LevelRef(seed, digest) for seed, digest in content[split]]
                for split in SPLITS
            },
        )
        for config_id, content in sets.items()
    ]
