"""Stages that a session under test executes: small, real, and able to misbehave."""

import os
import signal
import time
from pathlib import Path

from vagen.stages import progress


def open_run(run_dir: Path):
    calls = 0

    def execute(stage: str, **kwargs):
        nonlocal calls
        calls += 1
        return STAGES[stage](run_dir, calls, **kwargs)

    return execute


def refuse_run(run_dir: Path):
    raise ValueError(f"{run_dir} has no config/experiment.yaml: start with `vagen run`")


def _count(run_dir: Path, calls: int, **kwargs):
    return {"uri": str(run_dir), "sha256": "", "metrics": {"calls": calls, **kwargs}}


def _whoami(run_dir: Path, calls: int, **_):
    return {"pid": os.getpid(), "cwd": os.getcwd(), "metrics": {"loss": float("nan")}}


def _refuse(run_dir: Path, calls: int, **_):
    raise ValueError("the batch /x is corrupt: run `rollout` again")


def _break(run_dir: Path, calls: int, **_):
    raise KeyError("optimizer")


def _fill_disk(run_dir: Path, calls: int, **_):
    raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")


def _not_json(run_dir: Path, calls: int, **_):
    return {"metrics": {"model": object()}}


def _die(run_dir: Path, calls: int, **_):
    print("allocating 90 GiB", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def _commit_slowly(run_dir: Path, calls: int, *, seconds: float, **_):
    (run_dir / "started").touch()
    with progress.bar("work", 4) as advance:
        for _ in range(4):
            time.sleep(seconds / 4)
            advance(success=0.5)
    (run_dir / "committed").touch()
    return {"metrics": {"success": 0.5}}


STAGES = {
    "count": _count,
    "whoami": _whoami,
    "refuse": _refuse,
    "break": _break,
    "fill_disk": _fill_disk,
    "not_json": _not_json,
    "die": _die,
    "commit_slowly": _commit_slowly,
    "finalize": _count,
    **dict.fromkeys(("rollout", "judge", "advantage", "update"), _count),
}
