"""Learning curves: right numbers behind the lines, and a picture whatever the history holds."""

import math

import numpy as np
import pytest
from PIL import Image
from report_sample import sample_history

from vagen.report import Mark, write_comparison_curve, write_curves
from vagen.report import curves as module


@pytest.fixture
def drawn(monkeypatch):
    """Figures as they are saved."""
    figures, save = [], module._save
    monkeypatch.setattr(module, "_save", lambda f, p: figures.append(f) or save(f, p))
    return figures


def panel(figure, title):
    return next(axes for axes in figure.axes if axes.get_title(loc="left").startswith(title))


def test_every_panel_is_drawn(tmp_path, drawn):
    marks = [Mark("warm start", 0, 0.38, (0.32, 0.44)), Mark("final", 40, 0.71, (0.65, 0.76))]
    path = write_curves(sample_history(40), tmp_path / "c.png", title="run", marks=marks)
    with Image.open(path) as image:
        assert image.format == "PNG" and image.width > 1200
    assert len(drawn[0].axes) == 13
    for axes in drawn[0].axes:
        assert axes.get_legend() is not None and axes.get_xlabel() and axes.get_ylabel()
    labels = [text.get_text() for text in panel(drawn[0], "Success").get_legend().get_texts()]
    assert labels == [
        "train/success",
        "val/success",
        "warm start 0.38 [0.32, 0.44]",
        "final 0.71 [0.65, 0.76]",
    ]


@pytest.mark.slow
def test_long_numbers_leave_every_panel_room(tmp_path, drawn):
    """Two iterations of a policy that hardly moves: ticks of nine characters in most panels."""
    history = sample_history(2)
    for row in history:
        for name in row:
            if name.startswith(("actor/", "critic/")):
                row[name] = -1.78e-4 * row["iteration"]
    write_curves(history, tmp_path / "c.png")
    renderer = drawn[0].canvas.get_renderer()
    boxes = [axes.get_tightbbox(renderer) for axes in drawn[0].axes]
    assert all(axes.bbox.width > 100 for axes in drawn[0].axes)
    for number, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:number])


@pytest.mark.slow
def test_what_one_decides_by_is_drawn_of_the_training(tmp_path, drawn):
    write_curves(sample_history(20), tmp_path / "c.png")
    for title, labels in {
        "Score and reward": ["score", "rewards"],
        "Answers": ["format_correct", "action_is_valid"],
        "What went wrong": ["truncated"],
        "Judge": ["observation", "flagged"],
        "Gradient norm": ["actor/grad_norm"],
        "Turns": ["turns"],
    }.items():
        legend = panel(drawn[0], title).get_legend()
        assert [text.get_text() for text in legend.get_texts()] == labels


@pytest.mark.slow
def test_lines_hold_the_history(tmp_path, drawn):
    history = sample_history(12)
    write_curves(history, tmp_path / "c.png", window=4)
    raw, smooth, val = panel(drawn[0], "Success").lines[:3]
    values = [row["train/success"] for row in history]
    np.testing.assert_allclose(raw.get_ydata(), values)
    np.testing.assert_allclose(
        smooth.get_ydata(), [np.mean(values[max(0, i - 3) : i + 1]) for i in range(12)]
    )
    np.testing.assert_allclose(val.get_xdata(), [9])


def test_time_shares(tmp_path, drawn):
    rows = [{"iteration": i, "timing_s/rollout": 3.0, "timing_s/update": 1.0} for i in range(3)]
    write_curves(rows, tmp_path / "c.png")
    texts = [t.get_text() for t in panel(drawn[0], "Time").get_legend().get_texts()]
    assert texts == ["update 25%", "rollout 75%"]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [0, 1, 2])
def test_short_histories(tmp_path, drawn, rows):
    assert write_curves(sample_history(rows), tmp_path / "c.png").stat().st_size > 5000
    if rows == 0:
        texts = [text.get_text() for axes in drawn[0].axes for text in axes.texts]
        assert texts == ["not recorded in this run"] * 13


@pytest.mark.slow
def test_gaps_and_values_that_are_not_finite(tmp_path, drawn):
    history = sample_history(8)
    history[3]["train/success"] = math.nan
    history[4]["train/success"] = None
    del history[5]["train/success"]
    history[6]["timing_s/update"] = math.inf
    write_curves(history, tmp_path / "c.png", window=1)
    assert panel(drawn[0], "Success").lines[0].get_xdata().tolist() == [0, 1, 2, 6, 7]


def test_comparison_draws_mean_and_band(tmp_path, drawn):
    runs = [[{"iteration": i, "m": base + i} for i in range(4)] for base in (0.0, 1.0, 5.0)]
    runs[0].append({"iteration": 4, "m": 9.0})
    write_comparison_curve(
        {"three": runs, "one": runs[:1], "none": [[]]}, tmp_path / "c.png", metric="m", window=1
    )
    axes = drawn[0].axes[0]
    assert axes.lines[0].get_xdata().tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [2, 3, 4, 5])
    band = axes.collections[0].get_paths()[0].vertices
    assert band[:, 1].min() == 0 and band[:, 1].max() == 8
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == ["three (3 runs)", "one (1 run)"]


def test_comparison_names_the_metrics_there_are(tmp_path):
    with pytest.raises(ValueError, match=r"'train/sucess'.*train/success"):
        write_comparison_curve(
            {"a": [sample_history(3)]}, tmp_path / "c.png", metric="train/sucess"
        )
    assert not (tmp_path / "c.png").exists()
