"""Builds the levels of every split, disjoint by level hash."""

import json
from dataclasses import replace
from typing import Any

from vagen import progress
from vagen.envs import LevelRef
from vagen.judge.blind import blind_scores
from vagen.rollout.levels import LEVELS_FILE, SPLITS, LevelSet, assert_disjoint, draw_levels
from vagen.rollout.reach import weak_experts
from vagen.rollout.types import SectionScores
from vagen.run.folder import result
from vagen.run.run import Run
from vagen.service import environments_of
from vagen.stages.checks import check_endpoints, check_start
from vagen.storage import commit_directory


def load_levels(run: Run) -> list[LevelSet]:
    """The verified levels of the `build` step.

    Raises:
        CorruptArtifact: The folder was changed.
    """
    sets = json.loads((run.fetch(run.levels) / LEVELS_FILE).read_text())
    return [
        LevelSet(
            config_id,
            run.experiment.envs[config_id],
            content["env_config_digest"],
            {
                split: [
                    LevelRef(seed, digest, tuple(*difficulty))
                    for seed, digest, *difficulty in content[split]
                ]
                for split in SPLITS
            },
            SectionScores(**content.get("blind", {})),
        )
        for config_id, content in sets.items()
    ]


def build(run: Run) -> dict[str, Any]:
    """Draws distinct levels per split and checks that no level is in two of them.

    Also checks early for errors that would stop the training later.

    Raises:
        TrackingError, JudgeUnavailable, EndpointError: See `vagen.stages.checks`.
        LevelError: A split has fewer distinct levels than configured.
        ConfigError: Two splits share a level.
    """
    check_start(run)
    if not run.infra.has_ray_cluster:
        check_endpoints(run)
    with progress.bar("levels", 1) as advance:
        level_sets = draw_levels(run.experiment, dict.fromkeys(SPLITS))
        advance(1)
    metrics: dict[str, float] = {}
    for level_set in level_sets:
        assert_disjoint(level_set.config_id, level_set.splits)
        spec, splits = level_set.spec, level_set.splits
        env = environments_of(run.infra.environments).open(spec.env_name, spec.env_config)
        env.reset(seed=splits["train"][0].seed)
        env.close()
        metrics |= {
            f"build/{level_set.config_id}/{split}": len(refs) for split, refs in splits.items()
        }
    if run.experiment.judge.use_state_reward and run.experiment.judge.above_chance:
        places = environments_of(run.infra.environments)
        for n, each in enumerate(level_sets):
            seeds = [ref.seed for ref in each.splits["train"]]
            blind = blind_scores(run.experiment, each.config_id, seeds, places)
            level_sets[n] = replace(each, blind=blind)
    for text in weak_experts(run.experiment, environments_of(run.infra.environments)):
        progress.note(text)
    content = {each.config_id: each.to_json() | {"disjoint": True} for each in level_sets}
    payload = {"metrics": metrics, "config_digest": run.config_digest, "disjoint": True}
    with commit_directory(run.levels, kind="levels", payload=payload) as folder:
        (folder / LEVELS_FILE).write_text(json.dumps(content))
    return result(run.levels)
