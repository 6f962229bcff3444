"""A level before and after a training, as a moving picture."""

from copy import deepcopy

import pytest
from PIL import Image
from report_sample import sample_batch

from vagen.report.moving import NothingToShowError, draw_before_after


@pytest.fixture
def batches():
    """Each level lost before but the first, and won after but the second."""
    before, _ = sample_batch(4)
    after = deepcopy(before)
    for number, (old, new) in enumerate(zip(before.trajectories, after.trajectories, strict=True)):
        old.success, new.success = number == 0, number != 1
        for turn, image in zip(old.turns, old.rows[0].images, strict=False):
            turn.images = [image]
        new.turns = new.turns[:1]
        new.turns[0].images = new.rows[0].images[:1]
    return before, after


def test_the_level_that_was_learnt_is_drawn_turn_by_turn(batches, tmp_path):
    before, after = batches
    seed = draw_before_after(before, after, tmp_path / "learnt.gif")
    assert seed == before.trajectories[2].seed
    with Image.open(tmp_path / "learnt.gif") as picture:
        assert picture.n_frames == 1 + len(before.trajectories[2].turns)
    chosen = before.trajectories[1].seed
    assert draw_before_after(before, after, tmp_path / "chosen.gif", seed=chosen) == chosen


def test_what_cannot_be_drawn_is_said(batches, tmp_path):
    before, after = batches
    with pytest.raises(NothingToShowError, match=r"level 99 .*: there are 0, 1, 2, 3"):
        draw_before_after(before, after, tmp_path / "x.gif", seed=99)
    with pytest.raises(NothingToShowError, match="no level that was lost before"):
        draw_before_after(after, before, tmp_path / "x.gif")
    for turn in before.trajectories[2].turns:
        turn.images = []
    with pytest.raises(NothingToShowError, match="in text"):
        draw_before_after(before, after, tmp_path / "x.gif")
    assert not list(tmp_path.iterdir())
