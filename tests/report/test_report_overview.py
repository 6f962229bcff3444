"""The page of a run."""

from pathlib import Path

from report_sample import sample_batch
from test_report_viewer import Page

from vagen.report.overview import (
    Course,
    EvaluationLink,
    Flips,
    Headline,
    LevelPicture,
    write_overview,
)


def page_of(path: Path, **parts) -> tuple[str, Page]:
    given = {
        "title": "lake",
        "facts": {},
        "curves": None,
        "headline": None,
        "evaluations": [],
        "flips": [],
        "difficulties": [],
        "metrics": {},
    }
    text = write_overview(path / "index.html", **{**given, **parts}).read_text("utf-8")
    return text, Page(text)


def test_it_opens_with_the_gain_and_shows_levels_as_pictures(tmp_path):
    batch, _ = sample_batch(1)
    png = next(iter(batch.images.values()))
    flips = Flips(
        "test",
        "warm_start",
        "final",
        gained=[LevelPicture("aaa", png), LevelPicture("bbb", b"")],
        lost=[LevelPicture("ccc", png)],
        example=[
            Course("warm_start", False, [png], "<script>alert(1)</script>"),
            Course("final", True, [png, png], "Right"),
        ],
        address="../evaluations/final/report.html",
        page="levels-test.html",
    )
    link = EvaluationLink("final", "test", 256, 0.9, (0.86, 0.93), "final.html")
    text, page = page_of(
        tmp_path,
        headline=Headline("test", 256, 0.402, 0.898, 0.496, (0.43, 0.559)),
        flips=[flips],
        evaluations=[link],
    )
    assert "40 % → 90 %" in text and "gain +49.6 points, 95 % interval +43.0 to +55.9" in text
    assert len(page.find("img")) == 5, "one of the three levels has no picture"
    assert {attrs["href"] for attrs in page.find("a")} >= {
        "../evaluations/final/report.html#q=aaa",
        "../evaluations/final/report.html#q=ccc",
        "levels-test.html",
    }
    assert "<script>" not in text and "&lt;script&gt;" in text
    assert text.index("40 %") < text.index("before and after") < text.index("2 test levels gained")
    assert text.index("1 test levels lost") < text.index('id="evaluations"')


def test_before_two_evaluations_there_is_no_headline(tmp_path):
    text, page = page_of(tmp_path)
    assert "Nothing has been evaluated yet" in text and 'class="verdict"' not in text
    assert not page.find("img")
