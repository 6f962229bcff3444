"""A run killed in every one of its steps ends as one that was left alone."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vagen.stages.progress import read_events

EXPERIMENT = """\
name: lake
preset: vagen_full
seed: 3
envs:
  lake:
    env_name: FrozenLake
    env_config: {prompt_detail: brief, max_actions_per_step: 1}
    train_size: 64
    val_size: 4
    test_size: 16
data: {train_batch_size: 8, max_prompt_length: 128, max_response_length: 32,
       max_trajectory_length: 384}
rollout_manager: {max_turns: 3}
actor_rollout_ref:
  actor: {ppo_mini_batch_size: 4, optim: {lr: 1.0e-3}}
critic: {optim: {lr: 1.0e-3}}
warm_start: {steps: 6, batch_size: 8}
trainer: {total_training_steps: 2}
"""

STEPS = [
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
]
"""Where the run is killed, one after the other."""


def vagen(*words: str, cwd: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "vagen.cli.main", *words, "infra.threads=1"]
        if words[0] == "run"
        else [sys.executable, "-m", "vagen.cli.main", *words],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def starts(run: Path, stage: str, iteration: int | None) -> int:
    return sum(
        event["event"] == "stage_started"
        and (event["stage"], event["iteration"]) == (stage, iteration)
        for event in read_events(run)
    )


def kill_in(process: "subprocess.Popen[str]", run: Path, stage: str, iteration: int | None) -> None:
    """Kills the session, and with it the whole run, as soon as the stage has begun."""
    before = starts(run, stage, iteration)
    deadline = time.monotonic() + 180
    while starts(run, stage, iteration) == before:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, f"{stage} never began"
        time.sleep(0.005)
    session = json.loads((run / "session.json").read_text())["pid"]
    os.kill(session, signal.SIGKILL)
    process.kill()
    process.wait()


@pytest.mark.slow
def test_killed_in_every_step_it_ends_as_one_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lake.yaml").write_text(EXPERIMENT)
    undisturbed = vagen("run", "lake.yaml", "--name", "whole", cwd=tmp_path)
    output, _ = undisturbed.communicate(timeout=600)
    assert undisturbed.returncode == 0, output

    run = tmp_path / "outputs" / "killed"
    process = vagen("run", "lake.yaml", "--name", "killed", cwd=tmp_path)
    for stage, iteration in STEPS:
        kill_in(process, run, stage, iteration)
        process = vagen("resume", "killed", cwd=tmp_path)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output

    whole, resumed = (
        json.loads((tmp_path / "outputs" / name / "summary.json").read_text())
        for name in ("whole", "killed")
    )
    for key in ("warm_start", "final", "paired_gain", "iterations", "config_digest"):
        assert resumed[key] == whole[key], key
    for iteration in ("0000", "0001"):
        metrics = [
            json.loads(
                (
                    tmp_path / "outputs" / name / "iterations" / iteration / "update/manifest.json"
                ).read_text()
            )["payload"]["history"]
            for name in ("whole", "killed")
        ]
        assert metrics[0] == metrics[1]
