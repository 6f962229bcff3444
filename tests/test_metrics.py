"""The table of metrics against what a training logs."""

from pathlib import Path

import pytest
from mlflow.utils.validation import _validate_metric_name

from tools.docs.metrics import glossary
from vagen import progress
from vagen.metrics import STEPS, Metric, all_metrics, find
from vagen.run.run import Run
from vagen.stages.advantage import advantage
from vagen.stages.build import build
from vagen.stages.evaluate import evaluate
from vagen.stages.judge import judge
from vagen.stages.rollout import rollout
from vagen.stages.update import update
from vagen.stages.warm_start import warm_start
from vagen.storage import read_manifest

DOCUMENT = Path(__file__).parent.parent / "docs" / "metrics.md"
MANY = (
    "judge.use_state_reward=true",
    "judge.information.enable=true",
    "judge.repetition.enable=true",
    "rollout_manager.n_trajectory=2",
    "data.train_batch_size=3",
    "envs.game.env_config.prompt_format=grounding_worldmodeling",
    "data.max_response_length=48",
    "data.max_trajectory_length=640",
    "warm_start.steps=60",
    "actor_rollout_ref.actor.use_kl_loss=true",
    "actor_rollout_ref.actor.tis_imp_ratio_cap=2",
    "trainer.template_collapse_freq=1",
)


def logged(run: Run) -> set[str]:
    """Names of all metrics of an iteration, of the steps before it and of a validation."""
    progress.configure(run.events)
    for stage in (rollout, judge, advantage, update):
        with progress.step(stage.__name__, 0):
            stage(run, 0)
    progress.close()
    names = set(evaluate(run, "iteration-0001", "val")["metrics"])
    for folder in (run.levels, run.warm_start):
        names |= set(read_manifest(folder).payload["metrics"])
    return names | set(run.iteration_metrics()[0]) - {"iteration"}


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [(), MANY], ids=["plain", "many options"])
def test_what_is_logged_is_declared_and_the_other_way_round(make_run, overrides):
    run = make_run(*overrides, model="tiny:text")
    build(run)
    warm_start(run)
    names = logged(run)
    assert {name for name in names if find(name) is None} == set()
    declared = {metric for metric in all_metrics() if not metric.when}
    if overrides:
        kept = ("critic", "judge.use_state", "judge.info", "n_traj", "tis", "kl_loss", "template")
        declared |= {metric for metric in all_metrics() if any(k in metric.when for k in kept)}
    assert {metric.name for metric in declared - {find(name) for name in names}} == set()


def test_a_name_is_one_metric_and_one_that_mlflow_takes():
    names = [metric.name for metric in all_metrics()]
    assert len(names) == len(set(names))
    for name in names:
        _validate_metric_name(name.replace("<", "").replace(">", ""))


def test_variable_parts():
    assert find("val/success").name == "<split>/success"
    assert find("train/success/lake").name == "<split>/success/<env>"
    assert find("credit/lam/turn_3").name == "credit/lam/turn_<k>"
    assert find("judge/observation_missing").name == "judge/<section>_missing"
    assert find("other/success") is find("actor/entropy/more") is find("actorXentropy") is None


def test_conditions_are_sentences_that_a_table_can_hold():
    for metric in all_metrics():
        assert isinstance(metric, Metric) and "|" not in f"{metric.meaning}{metric.when}"
        assert metric.meaning.endswith(".") and metric.unit


def test_the_glossary_is_the_table():
    assert DOCUMENT.read_text() == glossary(), "run: python -m tools.docs.metrics docs/metrics.md"
    assert all(f"## {step}" in glossary() for step in STEPS)
