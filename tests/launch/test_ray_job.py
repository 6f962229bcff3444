"""Stages as jobs of a real Ray head: who asks, who dies, and what comes back."""

import os
import re
import signal
from contextlib import suppress
from typing import Any
from urllib.request import urlopen

import pytest
from ray_head import PATIENCE, TOKEN, Background, RayHead, await_true, in_warm_start, poll

from vagen.cluster import ClusterError, Dashboard
from vagen.launch.protocol import JobFailed, JobRefused, Lost
from vagen.launch.ray_job import RayJobs, task_name
from vagen.storage import open_store, parse_manifest

pytestmark = pytest.mark.slow
ACTOR = "ray::ResidentActor"
JOB = "-m vagen.launch.job"


def attempts(head: RayHead, run: Any, stage: str) -> list[tuple[int, str]]:
    jobs = RayJobs(head.dashboard, PATIENCE).attempts(task_name(run.mirror.uri, stage, {}))
    return [(number, details.status.value) for number, details in jobs]


def committed(run: Any, folder: str) -> str:
    """Digest of a folder of the run in its store; empty if it is not there."""
    content = open_store(run.infra.store).read_file(f"{run.name}/{folder}/manifest.json")
    return parse_manifest(content, folder).digest if content else ""


def metrics(head: RayHead) -> str:
    """What the head tells Prometheus; empty while it does not answer."""
    with suppress(OSError), urlopen(head.metrics, timeout=5) as answer:
        return answer.read().decode()
    return ""


def steps_told(head: RayHead, run: Any) -> set[str]:
    """Steps of a run whose duration Prometheus gets; empty if there are none for a minute."""
    gauge = re.compile(rf'ray_vagen_step_seconds{{(?=.*run="{run.name}").*step="(.*?)".*}} ')
    return set(poll(lambda: gauge.findall(metrics(head)), 60))


def test_a_stage_is_performed_and_its_result_is_what_the_store_has(head, run, stage_job):
    lines: list[str] = []
    result = stage_job("build", lines).perform(head.dashboard)
    assert result["uri"] == f"{run.mirror.uri}/levels"
    assert result["sha256"] == committed(run, "levels")
    assert sum("build: " in line for line in lines) == 1, lines
    assert not any(line.startswith("vagen-verdict") for line in lines)
    # Asked again, it finds what is committed.
    assert stage_job("build").perform(head.dashboard)["sha256"] == result["sha256"]
    assert attempts(head, run, "build") == [(1, "SUCCEEDED"), (2, "SUCCEEDED")]
    steps = steps_told(head, run)
    if not steps:
        # Ray never exports what a process tells whose agent was silent in its first 30 seconds.
        head.end_actors()
        stage_job("warm_start").perform(head.dashboard)
        steps = steps_told(head, run)
    assert steps & {"build", "warm_start"}, metrics(head)


def test_what_the_user_gave_is_refused_in_the_stage_s_own_words(head, stage_job):
    with pytest.raises(JobRefused, match="no stage is named 'rolout': there are build, "):
        stage_job("rolout").perform(head.dashboard)


def test_a_stage_that_breaks_is_no_fault_of_the_infrastructure(head, stage_job):
    lines: list[str] = []
    with pytest.raises(JobFailed, match=r"build failed: TypeError: .*unexpected keyword"):
        stage_job("build", lines, seed="7").perform(head.dashboard)
    assert any("Traceback" in line for line in lines), "the log has where"
    await_true(lambda: not head.processes(ACTOR))  # nobody knows what state it was left in


def test_whoever_comes_while_it_runs_attaches_and_gets_the_same(head, built, stage_job):
    first, second = [], []
    ask = Background(stage_job("warm_start", first).perform, head.dashboard)
    asked = in_warm_start(head, built, ask)
    result = stage_job("warm_start", second).perform(head.dashboard)
    assert asked.result() == result
    assert result["sha256"] == committed(built, "warm_start")
    assert attempts(head, built, "warm_start") == [(1, "SUCCEEDED")]
    assert first == second, "each has every line once"


def test_a_stage_outlives_its_job(head, built, stage_job):
    job = stage_job("warm_start")
    asked = in_warm_start(head, built, Background(job.perform, head.dashboard))
    (actor,) = head.processes(f"{ACTOR}.perform")
    for process in head.processes(JOB):
        os.kill(process, signal.SIGKILL)
    assert isinstance(asked.result(), Lost), asked.outcome
    assert "died without a verdict" in str(asked.outcome)
    assert not committed(built, "warm_start")
    assert job.perform(head.dashboard)["sha256"] == committed(built, "warm_start")
    assert actor in head.processes(ACTOR)
    assert [state for _, state in attempts(head, built, "warm_start")] == ["FAILED", "SUCCEEDED"]


def test_a_head_that_is_lost_loses_no_more_than_the_stage(head, built, stage_job):
    lines: list[str] = []
    job = stage_job("warm_start", lines)

    def logs() -> int:
        return sum("vagen.launch.job" in line for line in lines)

    asked = in_warm_start(head, built, Background(job.perform, head.dashboard))
    await_true(logs)  # a log is shown a moment after it was written
    head.kill()
    assert isinstance(asked.result(), Lost), asked.outcome
    head.start()
    assert job.perform(head.dashboard)["sha256"] == committed(built, "warm_start")
    assert attempts(head, built, "warm_start") == [(1, "SUCCEEDED")]
    assert logs() == 2, "both logs from their beginning"


def test_a_job_that_is_stopped_ends_with_its_stage(head, built, stage_job):
    lines: list[str] = []
    job = stage_job("warm_start", lines)
    asked = in_warm_start(head, built, Background(job.perform, head.dashboard))
    RayJobs(head.dashboard, PATIENCE).stop(f"{task_name(built.mirror.uri, 'warm_start', {})}-1")
    assert isinstance(asked.result(), JobFailed)
    assert "was stopped" in str(asked.outcome)
    assert not [line for line in lines if "Traceback" in line or "Error" in line], lines
    await_true(lambda: not head.processes(ACTOR))
    assert attempts(head, built, "warm_start") == [(1, "STOPPED")]
    assert not committed(built, "warm_start")


def test_a_job_that_takes_too_long_is_stopped(head, run, stage_job):
    with pytest.raises(JobFailed, match="took longer than 0 s, and was stopped: raise infra"):
        stage_job("build", seconds=0).perform(head.dashboard)
    assert attempts(head, run, "build") == [(1, "STOPPED")]


def test_a_token_that_is_not_the_cluster_s_is_refused(head, stage_job):
    stranger = Dashboard(head.dashboard.url, TOKEN[::-1])
    with pytest.raises(ClusterError, match="refuses the token"):
        stage_job("build").perform(stranger)


def test_a_head_that_is_not_there_is_lost(stage_job):
    with pytest.raises(Lost, match="Failed to connect"):
        stage_job("build").perform(Dashboard("http://127.0.0.1:9", TOKEN))
