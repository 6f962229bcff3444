"""Evaluation on held-out levels."""

import json

import numpy as np
import pytest
import torch

from vagen.config.base import ConfigError
from vagen.engines.local.engine import LocalEngine
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.levels import LevelSet
from vagen.run.folder import read_results, result
from vagen.stages.build import load_levels
from vagen.stages.evaluate import _version, evaluate_model, play_levels


@pytest.fixture(scope="module")
def run(warm_runs):
    return warm_runs["tiny:vl"]


@pytest.fixture(scope="module")
def evaluated(run, make_engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluations") / "warm_start"
    levels = load_levels(run)
    play_levels(
        run.experiment, make_engine(), levels, split="test", folder=folder, name="warm_start"
    )
    return folder


def test_results_are_those_of_the_levels(run, evaluated):
    results = read_results(evaluated)
    (level_set,) = load_levels(run)
    assert set(results["by_level"]) == {ref.level_hash for ref in level_set.splits["test"]}
    assert results["levels"] == 6
    assert results["success"] == pytest.approx(np.mean(list(results["by_level"].values())))
    low, high = results["ci95"]
    assert 0 <= low <= results["success"] <= high <= 1
    metrics = result(evaluated)["metrics"]
    assert metrics["test/success"] == pytest.approx(results["success"])


def test_the_batch_is_whole_and_the_report_is_there(evaluated, vl_model):
    batch = TrajectoryBatch.load(evaluated, kind="evaluation")
    assert len(batch.trajectories) == 6
    assert all("advantages" in t.rows[0].columns for t in batch.trajectories)
    report = (evaluated / "report.html").read_text()
    assert "warm_start on 6 test levels" in report


def test_the_same_model_outside_a_run_scores_the_same(run, evaluated, tmp_path):
    found = evaluate_model(
        str(run.warm_start / "policy"), run.experiment, run.infra, "test", 4, tmp_path / "out"
    )
    before = read_results(evaluated)["by_level"]
    assert found["results"]["by_level"].items() <= before.items()
    assert found["results"]["levels"] == 4


@pytest.mark.slow
def test_several_attempts_at_a_level(run, evaluated, tmp_path):
    """The first one is the only one of an evaluation with one."""
    sampling = run.experiment.actor_rollout_ref.rollout
    val = sampling.val_kwargs.model_copy(update={"n": 3})
    rollout = sampling.model_copy(update={"val_kwargs": val})
    network = run.experiment.actor_rollout_ref.model_copy(update={"rollout": rollout})
    config = run.experiment.model_copy(update={"actor_rollout_ref": network})
    policy = str(run.warm_start / "policy")
    results = evaluate_model(policy, config, run.infra, "test", None, tmp_path / "x")["results"]
    played = TrajectoryBatch.load(tmp_path / "x").trajectories
    first = {t.level_hash: float(t.success) for t in played[::3]}
    assert first == read_results(evaluated)["by_level"]
    rows = [t.rows[0].input_ids.tobytes() for t in played]
    assert len(set(rows)) > 6, "attempts differ"
    assert results["levels"] == 6 and len(played) == 18
    rates = [np.mean([t.success for t in played[i : i + 3]]) for i in range(0, 18, 3)]
    assert [*results["by_level"].values()] == pytest.approx(rates)
    assert results["success"] == pytest.approx(results["pass_at"]["1"])
    assert list(results["pass_at"]) == list(results["pass_all"]) == ["1", "2", "3"]
    assert results["pass_at"]["3"] == pytest.approx(np.mean([rate > 0 for rate in rates]))


def test_a_mixture_counts_a_level_once_per_environment(run, tmp_path):
    (levels,) = load_levels(run)
    both = [levels, LevelSet("again", levels.spec, levels.env_config_digest, levels.splits)]
    envs = {"game": levels.spec, "again": levels.spec}
    config = run.experiment.model_copy(update={"envs": envs})
    engine = LocalEngine(config, run.warm_start / "policy", device=torch.device("cpu"))
    play_levels(config, engine, both, split="test", folder=tmp_path / "x", name="x", count=3)
    results = json.loads((tmp_path / "x" / "results.json").read_text())
    assert len(results["by_level"]) == 6 == results["levels"]
    assert {name.partition("/")[0] for name in results["by_level"]} == {"game", "again"}


def test_names_of_evaluations(run):
    assert _version(run, "warm_start") == "warm_start"
    assert _version(run, "final") == "iteration-0002"
    assert _version(run, "iteration-0010") == "iteration-0009"
    for name in ("iteration-0", "iteration-x", "best"):
        with pytest.raises(ConfigError, match=name):
            _version(run, name)
