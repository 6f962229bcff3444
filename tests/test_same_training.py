"""The order of steps is written twice, in `vagen.train` and in the pipeline: both train the same.

One small training in one process, one as single stages by hand, one as the compiled pipeline (each
step a process of its own that loads what is committed). In stretches of iterations, and killed on
the way: tests/pipelines/test_resume.py.
"""

import json
from pathlib import Path

import pytest
from lake import digests, lake_yaml
from warm_process import WarmProcess, preload

from vagen.steps import ITERATION

preload()

BY_HAND = [
    ["warm_start"],
    ["evaluate", "--evaluation", "warm_start"],
    *([stage, "--iteration", "0"] for stage in ITERATION),
    ["evaluate", "--evaluation", "iteration-0001", "--split", "val"],
    *([stage, "--iteration", "1"] for stage in ITERATION),
    ["evaluate", "--evaluation", "final"],
    ["register"],
    ["finalize"],
]


def vagen(folder: Path, *words: str) -> None:
    process = WarmProcess("run", *words, cwd=folder)
    assert process.wait() == 0, process.output[-4000:]


@pytest.mark.slow
@pytest.mark.usefixtures("warm_steps")
def test_a_training_is_the_same_to_the_last_bit_however_its_steps_are_executed(tmp_path: Path):
    (tmp_path / "lake.yaml").write_text(lake_yaml(test_size=4, test_freq=1))
    new = ["lake.yaml", "infra.threads=1", "--name"]
    vagen(tmp_path, *new, "process")
    vagen(tmp_path, *new, "hand", "--stage", "build")
    for words in BY_HAND:
        vagen(tmp_path, "--of", "hand", "--stage", *words)
    vagen(tmp_path, *new, "pipeline", "--pipeline")

    runs = {name: tmp_path / "outputs" / name for name in ("hand", "pipeline")}
    expected = digests(tmp_path / "outputs" / "process")
    assert len(expected) == 2 + 2 * 4 + 2 + 3
    whole = json.loads((tmp_path / "outputs" / "process" / "summary.json").read_text())
    for name, run in runs.items():
        assert digests(run) == expected, name
        summary = json.loads((run / "summary.json").read_text())
        for key in ("warm_start", "final", "paired_gain", "iterations", "config_digest"):
            assert summary[key] == whole[key], (name, key)
