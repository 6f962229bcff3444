"""Random faults everywhere: one attempt at a time, no line lost, nothing left behind."""

import random
import threading
import time

import pytest
from apiserver import Chaos

from vagen.cluster import (
    JobFailed,
    await_raycluster,
    await_rayjob,
    delete_raycluster,
    ensure_raycluster,
    ensure_rayjob,
    job_name,
)

pytestmark = pytest.mark.slow


class LauncherDied(Exception):
    """The step's pod is gone; another one begins from nothing."""


def plan_for(dice: random.Random):
    """Drivers of 5 to 40 lines, of which some fail."""

    def plan(driver):
        count, fails = dice.randrange(5, 40), dice.random() < 0.3
        for number in range(count):
            time.sleep(0.002)
            yield f"{driver.rayjob} line {number}"
        if fails:
            raise RuntimeError("bad luck")

    return plan


def run_stage(place, manifest, task: str, dice: random.Random) -> list[str]:
    """Launchers, one after the other, until one succeeds; the lines that the last saw."""
    for _ in range(60):
        lines: list[str] = []
        patience = dice.choice([3, 10, 10**6])

        def on_log(line: str, lines=lines, patience=patience) -> None:
            lines.append(line)
            if len(lines) > patience:
                raise LauncherDied

        kube = place.connect()
        try:
            ensure_raycluster(kube, manifest)
            await_raycluster(kube, "lake", pending_deadline=20)
            job = ensure_rayjob(
                kube,
                cluster="lake",
                task=task,
                run="lake",
                entrypoint=["python", "-m", "vagen.stages.step"],
                ttl_hours=1,
                active_deadline=60,
                stop_deadline=5,
            )
            await_rayjob(
                kube,
                job["metadata"]["name"],
                on_log=on_log,
                pending_deadline=20,
                running_deadline=20,
            )
            return lines
        except (LauncherDied, JobFailed):
            continue
    raise AssertionError(f"{task} did not come to an end")


@pytest.mark.parametrize("seed", range(4))
def test_stages_come_to_an_end_one_attempt_at_a_time(namespace, manifest, seed) -> None:
    dice = random.Random(seed)
    namespace.operator.ray.plan = plan_for(dice)
    namespace.server.chaos = Chaos(seed)
    over = threading.Event()

    def expire() -> None:
        while not over.wait(0.3):
            namespace.store.expire()
            namespace.store.expire_pages()

    threading.Thread(target=expire, daemon=True).start()
    try:
        for iteration in range(3):
            task = job_name("lake", "update", iteration)
            lines = run_stage(namespace, manifest(), task, dice)
            last = [one for one in namespace.operator.ray.history if one.rayjob.startswith(task)][
                -1
            ]
            assert last.status == "SUCCEEDED"
            assert [line for line in lines if " line " in line] == last.lines
        delete_raycluster(namespace.connect(), "lake", wait=20)
    finally:
        over.set()
    assert namespace.operator.ray.overlaps() == []
    end = time.monotonic() + 5
    while namespace.store.all("RayJob") or namespace.store.all("Job"):
        assert time.monotonic() < end
        time.sleep(0.01)
    for kind in ("RayCluster", "RayJob", "Job", "Pod"):
        assert namespace.store.all(kind) == []


def test_two_launchers_at_once_are_one_attempt(namespace, manifest) -> None:
    """A step that the pipeline believes dead, and its successor."""
    namespace.operator.ray.plan = plan_for(random.Random(5))
    found: list[list[str]] = []
    dice = random.Random(1)
    launchers = [
        threading.Thread(
            target=lambda: found.append(
                run_stage(namespace, manifest(), "lake-update-0000", random.Random(dice.random()))
            )
        )
        for _ in range(3)
    ]
    for launcher in launchers:
        launcher.start()
    for launcher in launchers:
        launcher.join(60)
    assert len(found) == 3
    assert namespace.operator.ray.overlaps() == []
    assert sum(one.status == "SUCCEEDED" for one in namespace.operator.ray.history) == 1
