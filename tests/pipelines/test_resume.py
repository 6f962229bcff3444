"""A run killed in every one of its steps ends as one that was left alone."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from lake import digests, lake_yaml
from warm_process import WarmProcess, preload

from vagen.progress import read_events

preload()

STEPS = {
    "process": [
        ("build", None),
        ("warm_start", None),
        ("evaluate", None),
        ("rollout", 0),
        ("update", 0),
        ("rollout", 1),
        ("judge", 1),
        ("advantage", 1),
        ("update", 1),
        ("register", None),
    ],
    "pipeline": [("update", 1)],
}
"""Where the run is killed, one after the other."""


def starts(run: Path, stage: str, iteration: int | None) -> int:
    return sum(
        event["event"] == "stage_started"
        and (event["stage"], event["iteration"]) == (stage, iteration)
        for event in read_events(run / "events.jsonl")
    )


def kill_in(process: WarmProcess, run: Path, stage: str, iteration: int | None) -> None:
    """Kills the run, and with it the step that a pipeline has started, in a stage."""
    before = starts(run, stage, iteration)
    deadline = time.monotonic() + 900
    while starts(run, stage, iteration) == before:
        assert process.poll() is None, process.output
        assert time.monotonic() < deadline, f"{stage} never began"
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
@pytest.mark.usefixtures("warm_steps")
def test_killed_in_every_step_it_ends_as_one_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lake.yaml").write_text(lake_yaml(test_size=16, warm_start_steps=6))
    start = ("run", "lake.yaml", "infra.threads=1", "--name")
    undisturbed = WarmProcess(*start, "whole", cwd=tmp_path)
    assert undisturbed.wait() == 0, undisturbed.output
    outputs = tmp_path / "outputs"
    whole = json.loads((outputs / "whole" / "summary.json").read_text())

    for name, steps in STEPS.items():
        how = ["--pipeline"] if name == "pipeline" else []
        stretches = ["infra.mode=fused", "infra.iterations_per_task=2"] if how else []
        process = WarmProcess(*start, name, *how, *stretches, cwd=tmp_path)
        for stage, iteration in steps:
            kill_in(process, outputs / name, stage, iteration)
            process = WarmProcess("resume", name, *how, cwd=tmp_path)
        assert process.wait() == 0, process.output
        resumed = json.loads((outputs / name / "summary.json").read_text())
        for key in ("warm_start", "final", "paired_gain", "iterations", "config_digest"):
            assert resumed[key] == whole[key], (name, key)
        found, expected = digests(outputs / name), digests(outputs / "whole")
        assert found == {folder: expected[folder] for folder in found}
        # Of the process that was killed while it wrote it.
        assert expected.keys() - found.keys() <= {"checkpoints/0000"}
