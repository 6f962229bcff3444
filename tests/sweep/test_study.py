"""Which trials there are, and which end early: the study is closed and opened at every turn."""

from pathlib import Path

import optuna
import pytest

from vagen.sweep.schema import Asha, Range, SweepConfig
from vagen.sweep.study import STUDY, Study

LR = "critic.optim.lr"


def sweep(**options) -> SweepConfig:
    parameters = {"seed": (0, 1, 2), "preset": ("vagen_full", "vagen_base")}
    values = {"name": "test", "experiment": "frozenlake-tiny", "parameters": parameters} | options
    return SweepConfig(**values)


def drawn(folder: Path, config: SweepConfig, *, reopened: bool) -> list[dict]:
    """The values of all trials, each of which has ended when the next one is drawn."""
    folder.mkdir()
    study = Study(folder, config, jobs=1)
    found = []
    while (trial := study.draw()) is not None:
        found.append(dict(trial.parameters))
        if reopened:
            study = Study(folder, config, jobs=1)
            assert study.unfinished() == [trial]
        study.complete(trial, 1.0 / (1 + trial.number))
    assert Study(folder, config, jobs=1).draw() is None
    return found


RANDOM = {"parameters": {LR: Range(low=1e-5, high=1e-2, log=True), "seed": (0, 1, 2)}, "trials": 14}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"sampler": "random", **RANDOM}, {"sampler": "tpe", **RANDOM}]
)
def test_a_sweep_that_was_stopped_draws_what_it_would_have_drawn(tmp_path: Path, options: dict):
    config = sweep(**options)
    found = drawn(tmp_path / "once", config, reopened=False)
    assert drawn(tmp_path / "again", config, reopened=True) == found
    assert len(found) == config.size


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"sampler": "random", **RANDOM}])
def test_a_trial_whose_drawing_was_cut_short_gets_the_same_values(tmp_path: Path, options: dict):
    config = sweep(**options)
    expected = drawn(tmp_path / "whole", config, reopened=False)
    folder = tmp_path / "cut"
    folder.mkdir()
    study = Study(folder, config, jobs=1)
    first = study.draw()
    assert first is not None
    study.complete(first, 0.5)
    # The database as it is just after the next trial has come into it.
    optuna.load_study(study_name="test", storage=f"sqlite:///{folder / STUDY}").ask()
    (second,) = Study(folder, config, jobs=1).unfinished()
    assert [first.parameters, second.parameters] == expected[:2]


def test_a_grid_has_every_combination_once(tmp_path: Path):
    found = drawn(tmp_path / "grid", sweep(), reopened=False)
    assert len(found) == 6
    assert {tuple(point.values()) for point in found} == {
        (seed, preset) for seed in (0, 1, 2) for preset in ("vagen_full", "vagen_base")
    }


@pytest.mark.slow
def test_random_draws_differ_and_keep_to_the_range(tmp_path: Path):
    found = drawn(tmp_path / "random", sweep(sampler="random", **RANDOM), reopened=False)
    rates = [point[LR] for point in found]
    assert len(set(rates)) == len(rates)
    assert all(1e-5 <= rate <= 1e-2 for rate in rates)
    other = sweep(sampler="random", seed=1, **RANDOM)
    assert drawn(tmp_path / "other", other, reopened=False) != found


@pytest.mark.slow
def test_tpe_draws_near_what_has_had_success(tmp_path: Path):
    config = sweep(sampler="tpe", parameters={LR: Range(low=0.0, high=1.0)}, trials=40, asha=None)
    study = Study(tmp_path, config, jobs=1)
    distances = []
    while (trial := study.draw()) is not None:
        rate = trial.parameters[LR]
        assert isinstance(rate, float)
        distances.append(abs(rate - 0.3))
        study.complete(trial, 1 - distances[-1])
    assert sum(distances[-10:]) < 0.5 * sum(distances[:10])


@pytest.mark.slow
def test_the_best_half_goes_on_from_a_rung(tmp_path: Path):
    config = sweep(
        parameters={"seed": tuple(range(6))}, asha=Asha(min_iterations=2, reduction_factor=2)
    )
    study = Study(tmp_path, config, jobs=6)
    trials = [study.draw() for _ in range(6)]
    ended = []
    for trial, success in zip(trials, (0.5, 0.4, 0.6, 0.45, 0.5, 0.1), strict=True):
        assert trial is not None
        assert not study.report(trial, {1: 0.0})  # before the first rung
        study = Study(tmp_path, config, jobs=6)
        ended.append(study.report(trial, {1: 0.0, 2: success}))
        if ended[-1]:
            study.prune(trial)
    # Of n that came so far, the best n // 2 go on, at least one.
    assert ended == [False, True, False, True, False, True]
    assert [trial.state == "pruned" for trial in study.trials] == ended
    assert study.trials[1].value == 0.4
    assert [trial.number for trial in study.unfinished()] == [0, 2, 4]


def test_what_was_told_is_not_told_again(tmp_path: Path):
    config = sweep(parameters={"seed": (0, 1)}, asha=Asha(min_iterations=1, reduction_factor=2))
    study = Study(tmp_path, config, jobs=2)
    first, second = study.draw(), study.draw()
    assert first is not None and second is not None
    assert not study.report(first, {1: 0.5})
    assert study.report(second, {1: 0.25})
    assert not Study(tmp_path, config, jobs=2).report(first, {1: 0.5})
    assert study.read(0).validations == {1: 0.5}


def test_a_failure_has_its_reason(tmp_path: Path):
    study = Study(tmp_path, sweep(), jobs=1)
    trial = study.draw()
    assert trial is not None
    study.fail(trial, "the disk is full")
    failed = Study(tmp_path, sweep(), jobs=1).read(0)
    assert (failed.state, failed.reason, failed.value) == ("fail", "the disk is full", None)


def test_what_failed_is_tried_again_with_the_same_values(tmp_path: Path):
    study = Study(tmp_path, sweep(), jobs=1)
    first = study.draw()
    assert first is not None
    study.fail(first, "the disk is full")
    study.retry_failed()
    study.retry_failed()
    again = Study(tmp_path, sweep(), jobs=1).draw()
    assert again is not None and again.number == 1
    assert again.parameters == first.parameters
    study = Study(tmp_path, sweep(), jobs=1)
    while (trial := study.draw()) is not None:
        study.complete(trial, 1.0)
    done = [tuple(each.parameters.values()) for each in study.trials if each.state != "fail"]
    assert len(set(done)) == len(study.trials) - 1 == 6
