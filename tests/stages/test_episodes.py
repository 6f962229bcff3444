"""Which episodes an iteration and an evaluation play."""

from collections import Counter

import pytest

from vagen.engines.local import engine as engine_module
from vagen.rollout.episodes import evaluation_specs, greedy_specs, training_specs
from vagen.rollout.levels import LevelSet
from vagen.rollout.play import EpisodesFailed
from vagen.service import placement
from vagen.stages.build import load_levels


@pytest.fixture(scope="module")
def run(warm_runs):
    return warm_runs["tiny:vl"]


@pytest.fixture(scope="module")
def levels(run):
    return load_levels(run)


def test_an_epoch_plays_every_level_once_and_the_next_in_another_order(run, levels):
    train = [ref.seed for ref in levels[0].splits["train"]]
    epochs = [
        [s.level_seed for i in range(4) for s in training_specs(run.experiment, levels, 4 * e + i)]
        for e in range(2)
    ]
    for epoch in epochs:
        assert sorted(epoch) == sorted(train) and epoch != train
    assert epochs[0] != epochs[1]


def test_an_iteration_is_a_function_of_seed_and_iteration(run, levels, make_experiment):
    config = run.experiment
    assert training_specs(config, levels, 3) == training_specs(config, levels, 3)
    other_model = make_experiment("algorithm.lam=0.5", "actor_rollout_ref.rollout.temperature=0.8")
    assert training_specs(other_model, levels, 3) == training_specs(config, levels, 3)
    reseeded = training_specs(make_experiment("seed=8"), levels, 0)
    assert [s.level_seed for s in reseeded] != [
        s.level_seed for s in training_specs(config, levels, 0)
    ]


def test_a_batch_that_crosses_an_epoch_goes_on_with_the_next(levels, make_experiment):
    config = make_experiment("data.train_batch_size=18")
    seeds = [s.level_seed for i in range(4) for s in training_specs(config, levels, i)]
    assert set(Counter(seeds[:24]).values()) == {1} and set(Counter(seeds).values()) == {3}


def test_trajectories_of_a_group_share_the_level_and_nothing_else(levels, make_experiment):
    config = make_experiment("rollout_manager.n_trajectory=3")
    specs = [s for i in range(4) for s in training_specs(config, levels, i)]
    assert len({s.trajectory_id for s in specs}) == len(specs) == 4 * 6 * 3
    assert len({s.sampling_seed for s in specs}) == len(specs)
    groups = {s.group_id: {t.level_seed for t in specs if t.group_id == s.group_id} for s in specs}
    assert len(groups) == 24 and all(len(seeds) == 1 for seeds in groups.values())


def test_each_level_of_an_iteration_is_played_greedily_once(levels, make_experiment):
    specs = training_specs(make_experiment("rollout_manager.n_trajectory=3"), levels, 1)
    greedy = greedy_specs(specs)
    assert [(s.group_id, s.level_seed) for s in greedy] == [
        (s.group_id, s.level_seed) for s in specs[::3]
    ]
    assert not {s.trajectory_id for s in greedy} & {s.trajectory_id for s in specs}


def test_evaluation_plays_every_level_with_seeds_of_its_own(run, levels, make_experiment):
    """Two policies meet the same draws on a level, whatever else is evaluated."""
    specs = evaluation_specs(run.experiment, levels, "test")
    assert [s.level_seed for s in specs] == [ref.seed for ref in levels[0].splits["test"]]
    assert len({s.sampling_seed for s in specs}) == len(specs)
    trained_otherwise = make_experiment(
        "algorithm.adv_estimator=masked_gae", "trainer.total_training_steps=9", "warm_start.steps=0"
    )
    assert evaluation_specs(trained_otherwise, levels, "test") == specs
    assert evaluation_specs(run.experiment, levels, "test", 2) == specs[:2]
    val = evaluation_specs(run.experiment, levels, "val")
    assert not {s.sampling_seed for s in val} & {s.sampling_seed for s in specs}


def test_a_mixture_draws_from_all_its_environments(levels, make_experiment):
    both = [
        levels[0],
        LevelSet("again", levels[0].spec, levels[0].env_config_digest, levels[0].splits),
    ]
    specs = [s for i in range(8) for s in training_specs(make_experiment(), both, i)]
    assert Counter(s.config_id for s in specs) == {"game": 24, "again": 24}
    tests = evaluation_specs(make_experiment(), both, "test")
    assert len({s.trajectory_id for s in tests}) == 12


class _NoEnv:
    waits = False

    def reset(self, **_):
        raise ConnectionError("service is down")

    def close(self):
        pass


def test_a_batch_without_a_single_episode_is_refused(run, levels, make_engine, monkeypatch):
    """As when an environment's service is not there."""
    monkeypatch.setattr(engine_module, "check_rendering", lambda *_: None)
    monkeypatch.setattr(placement, "make", lambda *_: _NoEnv())
    with pytest.raises(
        EpisodesFailed, match=r"all 6 .* first \(game, seed \d+\) with ConnectionError"
    ):
        make_engine().play(
            training_specs(run.experiment, levels, 0),
            sampling=run.experiment.actor_rollout_ref.rollout,
            split="train",
        )
