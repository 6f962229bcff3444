"""Ray's worker processes, forked from one that has imported what they need.

A worker of the distributed engine pays a dozen seconds of a core for imports, and the tests start
more than a hundred of them. Within `warm_workers()` every `ray.init` of this process and of those
that it starts asks for workers that Ray begins with this file in the place of Python
(`py_executable`). It hands the worker's arguments, environment and files to a process that has
imported the libraries, which forks, and waits until the fork has ended. Neither Ray nor verl is
among them: each worker imports those as ever, and reads its own environment.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LIBRARIES = (
    "accelerate.hooks",
    "aiohttp",
    "datasets",
    "fastapi",
    "hydra",
    "peft.utils.save_and_load",
    "tensordict",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "transformers.models.auto.auto_factory",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.processing_auto",
    "uvicorn",
    "vagen.models.loading",
    "vagen.rollout.play",
)
_SOCKET = "WARM_RAY"
"""Environment variable: where the process that is forked listens."""
_ASK = Path(__file__).with_name("warm_ray_worker.py")


def hook(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """What Ray calls with the environment that workers are asked for (`RAY_RUNTIME_ENV_HOOK`)."""
    return {**(runtime_env or {}), "py_executable": f"{sys.executable} -I -S {_ASK}"}


@contextmanager
def warm_workers() -> Iterator[None]:
    """Ray's workers are forks while this is open."""
    with tempfile.TemporaryDirectory(prefix="warm") as folder:
        path = Path(folder) / "socket"
        variables = {
            _SOCKET: str(path),
            "RAY_RUNTIME_ENV_HOOK": f"{Path(__file__).stem}.hook",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        process = subprocess.Popen([sys.executable, __file__, str(path)])
        try:
            while not path.exists():
                assert process.poll() is None
                time.sleep(0.05)
            yield
        finally:
            process.kill()
            process.wait()
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def _serve(path: str) -> None:
    """Forks a worker for every connection."""
    import importlib
    import threading

    from vagen.engines.verl.env_vars import configure

    configure(cpu=True)
    for library in LIBRARIES:
        importlib.import_module(library)
    assert threading.active_count() == 1 and not sys.modules.keys() & {"ray", "verl"}
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen(64)
    os.rename(f"{path}.new", path)
    while True:
        connection, _ = listener.accept()
        content, files, _, _ = socket.recv_fds(connection, 2**20, 3)
        if os.fork() == 0:
            listener.close()
            _become(json.loads(content), files)
        for file in (*files, connection.detach()):
            os.close(file)


def _become(asked: dict[str, Any], files: list[int]) -> None:
    """The worker itself; the connection is open for as long as it lives."""
    import runpy

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    sys.argv = asked["words"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    code = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
