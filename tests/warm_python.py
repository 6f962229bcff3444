"""A Python whose processes are forked from one that has imported what they need.

A step of a pipeline or a worker of Ray pays about ten seconds of a core for imports, and the tests
start hundreds of them. `warm_python` starts a process that imports libraries, and gives the path of
a program that stands for Python: it hands its arguments, environment and files to that process,
which forks. Its end and its exit code are the fork's. Whoever starts processes starts them as ever.
"""

import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PROGRAM = """#!{python} -IS
import json, os, signal, socket, sys
asked = dict(words=sys.argv[1:], environment=dict(os.environ), folder=os.getcwd(), program=__file__)
connection = socket.socket(socket.AF_UNIX)
connection.connect({path!r})
socket.send_fds(connection, [json.dumps(asked).encode()], [0, 1, 2])
fork = int.from_bytes(connection.recv(4), "big")
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(fork, number))
code = connection.recv(1)
sys.exit(code[0] if code else 137)
"""


@contextmanager
def warm_python(*libraries: str) -> Iterator[Path]:
    """The program that stands for Python while this is open."""
    with tempfile.TemporaryDirectory(prefix="warm") as folder:
        program, path = Path(folder) / "python", Path(folder) / "socket"
        program.write_text(_PROGRAM.format(python=sys.executable, path=str(path)))
        program.chmod(0o755)
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        words = [sys.executable, __file__, str(path), *libraries]
        process = subprocess.Popen(words, env=variables)
        try:
            while not path.exists():
                assert process.poll() is None
                time.sleep(0.05)
            yield program
        finally:
            process.kill()
            process.wait()


_RAY = "WARM_RAY"
"""Environment variable: the program that Ray begins its workers with; empty is Python."""


@contextmanager
def warm_workers() -> Iterator[Path]:
    """Ray's workers are forks: of every `ray.init` here and in processes that are started here.

    They import Ray and verl themselves, which read their own environment.

    Yields:
        The folder that the command line of the process names of which they are forks.
    """
    with warm_python("warm_libraries") as program:
        variables = {_RAY: str(program), "RAY_RUNTIME_ENV_HOOK": f"{Path(__file__).stem}.hook"}
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield program.parent
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def hook(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """What Ray calls with the environment that workers are asked for (`RAY_RUNTIME_ENV_HOOK`)."""
    program = os.environ[_RAY]
    return {**(runtime_env or {}), **({"py_executable": program} if program else {})}


def _serve(path: str, libraries: list[str]) -> None:
    """Forks a process for every connection."""
    for library in libraries:
        importlib.import_module(library)
    assert threading.active_count() == 1 and "ray" not in sys.modules
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
            _become(json.loads(content), files, connection)
        for file in (*files, connection.detach()):
            os.close(file)


def _become(asked: dict[str, Any], files: list[int], connection: socket.socket) -> None:
    """The process that was asked for."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A shell starts what it puts into the background with interrupts ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setpgid(0, 0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    tempfile.tempdir = None
    threading.Thread(target=_die_with, args=(connection,), daemon=True).start()
    connection.send(os.getpid().to_bytes(4, "big"))
    sys.executable = asked["program"]
    words, code = asked["words"], 1
    try:
        if words[0] == "-m":
            sys.path[0], sys.argv = asked["folder"], words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.path[0], sys.argv = asked["folder"], words[:1] + words[2:]
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.path[0], sys.argv = os.path.dirname(words[0]), words
            runpy.run_path(words[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send(bytes([code]))
        os._exit(code)


def _die_with(connection: socket.socket) -> None:
    """Ends this process when the program that stands for it has ended."""
    connection.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2:])
