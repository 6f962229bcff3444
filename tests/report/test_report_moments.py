"""The viewer's slider: the same levels played by policies of one training."""

import json
import shutil
import subprocess
from dataclasses import replace
from importlib import resources

import pytest
from report_sample import sample_batch
from test_report_viewer import Page

from vagen.report import write_report

NODE = shutil.which("node")


@pytest.fixture(scope="module")
def moments():
    """Three levels, played by two policies: one is gained, one lost, one as before."""
    batch, strings = sample_batch(3)
    wins = [(False, True, True), (True, False, True)]
    played = [
        replace(item, level_hash=f"level-{k}", success=success)
        for row in wins
        for k, (item, success) in enumerate(zip(batch.trajectories, row, strict=True))
    ]
    return replace(batch, trajectories=played), strings


def test_a_level_can_be_seen_over_the_training(moments, tmp_path):
    batch, strings = moments
    path = write_report(
        batch,
        tmp_path / "levels.html",
        title="Levels",
        tokenizer=strings,
        moments=["warm_start", "final"],
        back="index.html",
    )
    page = Page(path.read_text("utf-8"))
    assert page.data["moments"] == ["warm_start", "final"]
    assert [item["moment"] for item in page.data["trajectories"]] == [0, 0, 0, 1, 1, 1]
    (slider,) = [attrs for attrs in page.find("input") if attrs["type"] == "range"]
    assert slider["max"] == "1"
    assert [attrs["href"] for attrs in page.find("a")] == ["index.html"]


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_levels_that_were_gained_and_lost_are_found(moments, tmp_path):
    batch, strings = moments
    path = write_report(
        batch, tmp_path / "p.html", title="", tokenizer=strings, moments=["before", "after"]
    )
    script = """
const text = require("fs").readFileSync(0, "utf-8");
globalThis.document = { getElementById: () => ({ textContent: text }) };
const source = require("fs").readFileSync(process.argv[1], "utf-8");
const shown = new Function(source + `
  return ["all", "gained", "lost"].map((f) => [0, 1].map((m) => select(f, "", "order", m)
    .map((t) => t.level)));`)();
console.log(JSON.stringify(shown));
"""
    data = resources.files("vagen.report") / "templates" / "data.js"
    done = subprocess.run(
        [NODE, "-e", script, str(data)],
        input=Page(path.read_text("utf-8")).text["data"],
        capture_output=True,
        text=True,
        check=True,
    )
    every = ["level-0", "level-1", "level-2"]
    assert json.loads(done.stdout) == [[every, every], [[], ["level-0"]], [[], ["level-1"]]]
