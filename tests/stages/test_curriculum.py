"""Levels drawn by the success seen so far."""

import json
import shutil
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from vagen.config.data_options import CurriculumConfig
from vagen.envs import distinct_levels, make, parse_env_config
from vagen.envs.registry import get_environment
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.curriculum import (
    Curriculum,
    buckets_of,
    count_successes,
    draw_weights,
    weighted_order,
)
from vagen.rollout.episodes import refill_specs, training_specs
from vagen.rollout.types import Status
from vagen.run import layout
from vagen.run.run import Run
from vagen.stages.build import build, load_levels
from vagen.stages.rollout import curriculum_of
from vagen.storage import read_manifest
from vagen.train import iterate

ON = "data.curriculum.enable=true"


@pytest.fixture(scope="module")
def built(make_run):
    run = make_run(ON)
    build(run)
    return run


@pytest.mark.parametrize(
    ("name", "options"), [("FrozenLake", {"size": 5}), ("Sokoban", {}), ("Household", {})]
)
def test_difficulty_is_what_the_best_player_needs(name, options):
    """Sokoban's and FrozenLake's experts play best; Household's has to find things first."""
    options = {**options, "max_actions_per_step": 1, "expert_actions_per_turn": 1}
    config = parse_env_config(name, options)
    found = set()
    for ref in distinct_levels(name, options, "train", 12, with_difficulty=True):
        env = make(name, options)
        env.reset(seed=ref.seed)
        moves, success = 0, False
        while not success and moves < 40:
            *_, info = env.step(env.expert_response())
            moves, success = moves + 1, info["success"]
        assert success
        found.add(ref.difficulty)
        if name == "Household":
            assert 1 <= ref.difficulty[0] <= moves
        else:
            assert ref.difficulty[0] == moves
        level = get_environment(name).load().sample_level(config, ref.seed, "train")
        assert ref.difficulty == get_environment(name).load().difficulty(level)
    assert len(found) > 2


@pytest.mark.parametrize("name", ["SVG", "Navigation", "PrimitiveSkill", "Blackjack"])
def test_other_environments_say_what_they_know(name):
    refs = distinct_levels(name, {}, "train", 10, with_difficulty=True)
    lengths = {len(ref.difficulty) for ref in refs}
    assert lengths == ({1} if name in ("SVG", "Navigation") else {0})


def test_buckets_are_of_equal_size_but_for_ties(built):
    (level_set,) = load_levels(built)
    buckets = buckets_of(CurriculumConfig(buckets=4), [level_set])
    by_bucket: dict[str, list] = {}
    for ref in level_set.splits["train"]:
        by_bucket.setdefault(buckets["game", ref.seed], []).append(ref.difficulty)
    ordered = [by_bucket[name] for name in sorted(by_bucket)]
    assert len(ordered) > 2
    for easier, harder in pairwise(ordered):
        assert max(easier) < min(harder), "equally hard levels share a bucket"
    first = 0
    for name in sorted(by_bucket):
        assert int(name.removeprefix("game/")) == first * 4 // 24
        first += len(by_bucket[name])


def test_levels_without_difficulty_are_one_bucket(warm_runs):
    levels = load_levels(warm_runs["tiny:vl"])
    config = CurriculumConfig(enable=True)
    assert set(buckets_of(config, levels).values()) == {"game/0"}
    weights = draw_weights(["game/0"] * 24, {"game/0": (3.0, 4.0)})
    np.testing.assert_allclose(weights, 1 / 24)


def test_weights_are_the_documented_ones():
    seen = {"a/0": (8.0, 8.0), "a/1": (2.0, 6.0)}
    weights = draw_weights(["a/0", "a/1", "a/2", "a/1"], seen)
    learnable = np.array([0.9 * 0.1, 3 / 8 * 5 / 8, 0.25, 3 / 8 * 5 / 8])
    np.testing.assert_allclose(weights, 0.8 * learnable / learnable.sum() + 0.2 / 4)
    assert weights.sum() == pytest.approx(1)


def test_levels_are_drawn_by_their_share_of_what_is_left():
    weights = np.array([0.5, 0.3, 0.2])
    orders = [tuple(weighted_order(weights, seed).tolist()) for seed in range(4000)]
    counts = Counter(orders)
    assert sum(counts.values()) == 4000 and all(sorted(order) == [0, 1, 2] for order in counts)
    for order in [(0, 1, 2), (1, 0, 2), (2, 1, 0)]:
        first, second, _ = weights[list(order)]
        share = first * second / (1 - first)
        error = (share * (1 - share) / 4000) ** 0.5
        assert counts[order] / 4000 == pytest.approx(share, abs=4 * error)


def test_older_episodes_count_less():
    seen = count_successes({}, ["a/0", "a/0", "a/1"], [True, False, True])
    assert seen == {"a/0": (1, 2), "a/1": (1, 1)}
    seen = count_successes(seen, ["a/1"], [False])
    assert seen == {"a/0": (0.8, 1.6), "a/1": (0.8, 1.8)}


def test_draws_prefer_medium_success_and_refills_go_on(built, make_experiment):
    levels = load_levels(built)
    config = make_experiment(ON, "data.train_batch_size=8")
    buckets = buckets_of(config.data.curriculum, levels)
    names = sorted(set(buckets.values()))
    seen = dict.fromkeys(names, (40.0, 40.0)) | {names[1]: (20.0, 40.0)}
    drawn = Counter()
    for seed in range(40):
        order = Curriculum(config.data.curriculum, levels, seen, seed).order()
        specs = training_specs(config, levels, 3, order)
        drawn += Counter(buckets["game", spec.level_seed] for spec in specs)
        more = refill_specs(config, levels, 3, 8, 5, order)
        all_seeds = [spec.level_seed for spec in specs + more]
        assert len(set(all_seeds)) == 13, "no level twice"
        assert len({spec.group_id for spec in specs + more}) == 13
    shares = {name: drawn[name] / Counter(buckets.values())[name] for name in names}
    assert shares[names[1]] > 2 * max(share for name, share in shares.items() if name != names[1])


def curriculum_run(make_started_run, *overrides) -> Run:
    """With levels that know their difficulty."""
    run = make_started_run(ON, "data.curriculum.buckets=3", *overrides)
    shutil.rmtree(run.levels)
    build(run)
    return run


@pytest.mark.slow
def test_a_resumed_run_draws_the_same_levels(make_started_run):
    """And adapts lambda as one that was not stopped."""
    credit = "algorithm.adv_estimator=adaptive_credit"
    whole = curriculum_run(make_started_run, credit)
    with whole.session():
        iterate(whole, 0, 3)
    stopped = curriculum_run(make_started_run, credit)
    with stopped.session():
        iterate(stopped, 0, 1)
    again = Run.open(stopped.path)
    with again.session():
        iterate(again, 1, 3)
    train = {ref.seed: ref.level_hash for ref in load_levels(whole)[0].splits["train"]}
    for iteration in range(3):
        files = [read_manifest(run.step(iteration, "rollout")).files for run in (whole, again)]
        assert files[0] == files[1] and layout.CURRICULUM in files[0]
        batch = TrajectoryBatch.load(whole.step(iteration, "rollout"))
        for trajectory in batch.trajectories:
            assert train[trajectory.seed] == trajectory.level_hash, "a training level"
        shares = [v for k, v in batch.metrics.items() if k.startswith("curriculum/share/")]
        assert sum(shares) == pytest.approx(1)
        difficulty = {ref.seed: ref.difficulty[0] for ref in load_levels(whole)[0].splits["train"]}
        mean = np.mean([difficulty[t.seed] for t in batch.trajectories])
        assert batch.metrics["curriculum/difficulty/game"] == pytest.approx(mean)
    states = [json.loads((r.checkpoint(2) / "engine.json").read_text()) for r in (whole, again)]
    assert states[0] == states[1] and states[0]["credit"]["turns"]
    curriculum = curriculum_of(again, 2)
    assert curriculum.seen == json.loads((again.step(1, "rollout") / layout.CURRICULUM).read_text())
    played = TrajectoryBatch.load(again.step(0, "rollout")).trajectories
    assert sum(n for _, n in curriculum_of(again, 1).seen.values()) == len(played)


def test_episodes_that_failed_do_not_count(built):
    levels = load_levels(built)
    run_batch = [
        type("Episode", (), {"config_id": "game", "seed": ref.seed, "success": True, "status": s})()
        for ref, s in zip(levels[0].splits["train"], [Status.OK, Status.ENV_ERROR], strict=False)
    ]
    config = CurriculumConfig(enable=True)
    seen, _ = Curriculum(config, levels, {}, 0).count(run_batch)  # type: ignore[arg-type]
    assert seen is not None and [*seen.values()] == [(1.0, 1.0)]


@pytest.mark.slow
def test_groups_that_the_batch_leaves_out_are_counted(make_started_run):
    """Dynamic sampling keeps groups that vary: those alone would say that all levels are medium."""
    run = curriculum_run(
        make_started_run,
        "preset=grpo_mask",
        "rollout_manager.n_trajectory=2",
        "data.train_batch_size=6",
        "algorithm.filter_groups.max_num_gen_batches=4",
    )
    with run.session():
        iterate(run, 0, 1)
    batch = TrajectoryBatch.load(run.step(0, "rollout"))
    groups = batch.metrics["rollout/groups_played"]
    assert groups > 6
    assert sum(n for _, n in curriculum_of(run, 1).seen.values()) == 2 * groups


def test_off_nothing_is_recorded(warm_runs):
    run = warm_runs["tiny:vl"]
    recorded = json.loads((run.levels / "levels.json").read_text())["game"]["train"]
    assert all(len(entry) == 2 for entry in recorded)
    assert Curriculum(CurriculumConfig(), load_levels(run), {}, 0).count([]) == (None, {})
