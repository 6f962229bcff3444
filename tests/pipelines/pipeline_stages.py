"""Small stages for the pipeline under test: they commit folders, resume, and fail on demand."""

import os
import signal
from pathlib import Path

from vagen.stages import progress
from vagen.storage import commit_directory, directory_digest, read_manifest

FOLDERS = {
    "build": "levels",
    "warm_start": "warm_start",
    "rollout": "iterations/{iteration:04d}/rollout",
    "judge": "iterations/{iteration:04d}/judge",
    "advantage": "iterations/{iteration:04d}/advantage",
    "update": "iterations/{iteration:04d}/update",
    "evaluate": "evaluations/{name}",
    "measure": "evaluations/{name}",
    "register": "registration",
}


def open_run(run_dir: Path):
    progress.describe("small", 3)

    def execute(stage: str, **kwargs):
        if stage == "finalize":
            with (run_dir / "finalized").open("a") as file:
                file.write(f"{kwargs['state']} {os.getpid()}\n")
            return {"uri": str(run_dir), "sha256": "", "metrics": {}}
        folder = run_dir / FOLDERS[stage].format(**kwargs)
        if not folder.exists():
            misbehave(f"{stage}-{kwargs.get('iteration', kwargs.get('name', ''))}".rstrip("-"))
            folder.parent.mkdir(parents=True, exist_ok=True)
            with commit_directory(folder, kind=stage, payload=kwargs) as temporary:
                (temporary / "data").write_text(stage)
        digest = directory_digest(read_manifest(folder))
        return {
            "uri": str(folder),
            "sha256": digest,
            "metrics": {"success": 0.5, "loss": float("nan")},
        }

    return execute


def misbehave(step: str) -> None:
    if os.environ.get("REFUSE_AT") == step:
        raise ValueError("level 17 cannot be solved: choose another seed")
    if os.environ.get("BREAK_AT") == step:
        raise RuntimeError("singular matrix")
    if os.environ.get("DIE_AT") == step:
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get("INTERRUPT_AT") == step:
        os.kill(os.getppid(), signal.SIGINT)
        signal.pause()
    if os.environ.get("TERMINATE_AT") == step:
        os.kill(os.getppid(), signal.SIGTERM)
        signal.pause()
