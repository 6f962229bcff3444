"""One stage of a run as a program: what a job on the run's Ray cluster executes.

    python -m vagen.stages.step s3://bucket/runs/lake-1 rollout iteration=3

The stage is executed by the run's session in the cluster (`vagen.stages.cluster_session`), which is
started if there is none. Its reply goes into the store, beside the run, where the pod that asked
for it looks. Exit codes: 0 done, 1 the stage broke, 2 it refused what the user gave it.
"""

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vagen.cluster.names import job_name
from vagen.stages.routing import INSIDE, run_name, split_uri
from vagen.stages.session import SessionError, StageError, StageFailed, call, iterate
from vagen.storage import Store, commit_directory, open_store

TRAIN = "train"
"""Not a stage: all stages of the iterations from `start` to before `stop`."""
RAY_LOGS = "ray-logs"
"""Not a stage: puts what Ray wrote on its nodes into the store."""
LOGS = "logs"
"""Folder of a run in its store: what its Ray clusters wrote, a folder each."""
REPLIES = "replies"
"""Folder beside a run's own ones in the store."""
_NUMBERS = ("iteration", "start", "stop")


def command(run: str, stage: str, arguments: Mapping[str, Any]) -> list[str]:
    """The command line that has a stage executed; its words need no quoting in a shell."""
    words = [f"{key}={value}" for key, value in sorted(arguments.items())]
    return ["python", "-m", "vagen.stages.step", run, stage, *words]


def name_of(run: str, stage: str, arguments: Mapping[str, Any]) -> str:
    """Name of the job that executes a stage, the same whoever asks."""
    label = "-".join([stage.replace("_", "-"), *filter(None, [arguments.get("name")])])
    return job_name(run_name(run), label, arguments.get("iteration", arguments.get("start")))


def read_reply(run: str, task: str) -> dict[str, Any] | None:
    """What the last attempt at a task had to say; None if it got to nothing."""
    store, key = _place(run, task)
    content = store.read_file(key)
    return json.loads(content) if content else None


def main(words: Sequence[str]) -> int:
    """Executes a command line made by `command`; returns the exit code."""
    run, stage, *pairs = words
    arguments = dict(_argument(pair) for pair in pairs)
    store, key = _place(run, name_of(run, stage, arguments))
    # What an attempt before this one left is not this one's reply.
    store.write_file(key, b"")
    os.environ[INSIDE] = run
    code, reply = _perform(run, stage, arguments)
    store.write_file(key, json.dumps(reply).encode())
    if code:
        print(f"error: {reply['message']}", file=sys.stderr)
    return code


def _perform(run: str, stage: str, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Exit code and reply."""
    try:
        if stage == RAY_LOGS:
            result = _save_ray_logs(run)
        else:
            result = iterate(run, **arguments) if stage == TRAIN else call(run, stage, **arguments)
    except StageError as error:
        return 2, {"ok": False, "kind": "user", "message": str(error)}
    except (StageFailed, SessionError) as error:
        return 1, {"ok": False, "kind": "internal", "message": str(error)}
    return 0, {"ok": True, "result": result}


def keep_logs(run: str, source: Path, kind: str) -> str:
    """Puts a committed folder of logs into the store of a run; returns its URI."""
    root, name = split_uri(run)
    stamp = f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    return open_store(root).put_directory(source, f"{name}/{LOGS}/{stamp}-{kind}")


def _save_ray_logs(run: str) -> dict[str, Any]:
    from vagen.engines.verl import node_logs

    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder) / LOGS
        with commit_directory(logs, kind=LOGS) as partial:
            for line in node_logs.write("auto", partial):
                print(f"not saved: {line}", flush=True)
        return {"uri": keep_logs(run, logs, "ray")}


def _place(run: str, task: str) -> tuple[Store, str]:
    root, name = split_uri(run)
    return open_store(root), f"{name}/{REPLIES}/{task}.json"


def _argument(pair: str) -> tuple[str, Any]:
    key, _, value = pair.partition("=")
    return key, int(value) if key in _NUMBERS else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
