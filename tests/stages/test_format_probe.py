"""The format probe: what it says, when it stops a run, and that a training is the same with it."""

import pytest

from vagen import progress
from vagen.stages.advantage import advantage
from vagen.stages.evaluate import evaluate
from vagen.stages.format_probe import DEFAULT_ANSWERS, FormatNotKept, answers_probed
from vagen.stages.judge import judge
from vagen.stages.rollout import rollout
from vagen.stages.update import update
from vagen.steps import WARM_START
from vagen.storage import read_manifest
from vagen.train import iterate

PROBED = "trainer.format_probe=5"


def said(run) -> list[dict]:
    return [e for e in progress.read_events(run.events) if e["event"] == "format_probe"]


def test_a_policy_that_does_not_keep_the_layout_stops_the_run(make_started_run):
    hot = "actor_rollout_ref.rollout.temperature=3"
    run = make_started_run(PROBED, "trainer.format_probe_min=1.0", hot)
    with progress.reporting(run.events), pytest.raises(FormatNotKept) as stopped:
        evaluate(run, WARM_START, "test")
    (event,) = said(run)
    assert event["answers"] == 5 and event["format_correct"] < 5
    text = str(stopped.value)
    assert f"game: {event['format_correct']} of 5 first answers" in text
    assert "`envs.game.env_config.tags`" in text
    shown = [line for line in text.splitlines() if line.startswith("  ")]
    assert len(shown) == min(2, 5 - event["format_correct"])
    assert not run.evaluation(WARM_START).exists()
    with pytest.raises(FormatNotKept) as again:
        evaluate(run, WARM_START, "test")
    assert str(again.value) == text, "the same answers, whenever it is asked"


@pytest.mark.slow
def test_it_is_asked_once(make_started_run):
    run = make_started_run(PROBED, "trainer.format_probe_min=0")
    with progress.reporting(run.events):
        evaluate(run, WARM_START, "test")
        for stage in (rollout, judge, advantage, update):
            stage(run, 0)
        evaluate(run, "iteration-0001", "val")
    assert [event["answers"] for event in said(run)] == [5]


@pytest.mark.parametrize(
    ("words", "answers"),
    [((), 0), (("trainer.format_probe=3",), 3), (("trainer.format_probe=0",), 0)],
)
def test_a_tiny_model_is_probed_if_it_is_asked_for(make_experiment, vl_dir, words, answers):
    assert answers_probed(make_experiment(*words)) == answers
    other = make_experiment(*words, f"actor_rollout_ref.model.path={vl_dir}")
    assert answers_probed(other) == (answers if words else DEFAULT_ANSWERS)


@pytest.mark.slow
def test_a_training_is_the_same_with_a_probe_and_without(make_started_run):
    """Every number of two iterations, and all weights and moments, to the last bit."""
    left = []
    for words in ((PROBED, "trainer.format_probe_min=0"), ("trainer.format_probe=0",)):
        run = make_started_run(*words, "trainer.total_training_steps=2")
        with run.session():
            evaluate(run, WARM_START, "test")
            iterate(run, 0, 2)
        files = {
            file.relative_to(run.path): file.read_bytes()
            for folder in ("checkpoints", "iterations", "evaluations")
            for file in (run.path / folder).rglob("*.safetensors")
        }
        assert len(files) >= 4
        payloads = [read_manifest(run.step(i, "update")).payload["history"] for i in range(2)]
        left.append((files, payloads))
    assert left[0] == left[1]
