"""Two policies where there should be one: a run stops at its start, and says so later."""

import numpy as np
import pytest
import torch

from vagen import progress
from vagen.engines.columns import EnginesDisagree
from vagen.stages.advantage import advantage
from vagen.stages.judge import judge
from vagen.stages.rollout import rollout
from vagen.stages.update import update

ALARM = "rollout/disagreement_alarm"


def begun(make_started_run, *overrides: str):
    """A run with the first iteration played and judged."""
    run = make_started_run(*overrides, model="tiny:vl")
    for stage in (rollout, judge):
        stage(run, 0)
    return run


def other_weights(engine) -> None:
    """As if an update had reached only one of the two."""
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in engine.actor.model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)


def other_pixels(engine) -> None:
    """As if the two had different image processors."""
    processor = engine.processor.image_processor
    processor.image_mean = [mean + 2.0 for mean in processor.image_mean]
    engine.processor._images.clear()
    engine._frames = type(engine._frames)(engine.processor)


def other_bans(engine) -> None:
    """As if the trainer left out a token that the rollout has drawn: the most frequent one."""
    batch = np.concatenate(engine.drawn)
    engine.processor.banned_ids.append(int(np.bincount(batch).argmax()))
    engine.processor._banned.clear()


@pytest.mark.parametrize("change", [other_weights, other_pixels, other_bans])
def test_a_run_whose_engines_disagree_is_stopped(make_started_run, change):
    from vagen.rollout.batch import TrajectoryBatch

    run = begun(make_started_run)
    batch = TrajectoryBatch.load(run.step(0, "judge"))
    rows = [row for trajectory in batch.trajectories for row in trajectory.rows]
    run.engine.drawn = [row.input_ids[row.loss_mask] for row in rows]
    change(run.engine)
    with pytest.raises(EnginesDisagree, match=r"trainer\.agreement\.(max_ratio|min_corr)"):
        advantage(run, 0)
    assert not run.step(0, "advantage").exists()


def test_it_goes_on_if_asked_to_and_is_logged_all_the_same(make_started_run):
    run = begun(make_started_run, "trainer.agreement.enable=false")
    other_weights(run.engine)
    assert advantage(run, 0)["metrics"][ALARM] == 1


@pytest.mark.slow
def test_later_iterations_sound_the_alarm(make_started_run):
    run = begun(make_started_run)
    found = advantage(run, 0)["metrics"]
    assert found[ALARM] == 0
    assert found["rollout/ratio_mean"] == pytest.approx(1, abs=1e-3)
    assert found["rollout/probability_correlation"] > 0.999
    update(run, 0)
    for stage in (rollout, judge):
        stage(run, 1)
    other_weights(run.engine)
    with progress.reporting(run.events):
        assert advantage(run, 1)["metrics"][ALARM] == 1
    events = [e for e in progress.read_events(run.events) if e["event"] == "disagreement_alarm"]
    assert [event["iteration"] for event in events] == [1]
    assert "do not agree" in events[0]["reason"]
