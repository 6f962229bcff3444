"""What a client, known or not, must not be able to do to a service that others use."""

import os
import socket
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from service_calls import open_session, post, reset

from vagen.config import ConfigError
from vagen.experiment.checks_infra import check_infra
from vagen.experiment.load import load_infra

ROOT = Path(__file__).parents[2]
TOKEN = "0123456789abcdef0123"


@pytest.mark.parametrize(
    ("env_name", "env_config", "told"),
    [
        ("Sokoban", {"level_file": "/etc/passwd"}, "level_file: the service opens no file"),
        ("Sokoban", {"level_file": "/nowhere"}, "level_file: the service opens no file"),
        ("Sokoban", {"search_budget": 10**12}, "search_budget: the service does at most 100000"),
        ("SVG", {"scorer": "dino", "dino_path": "/root"}, "dino_path: the service opens no file"),
        ("FrozenLake", {"size": 16, "tile_size": 256}, "tile_size: a picture of 4096 pixels"),
    ],
)
def test_what_a_client_may_not_choose_is_refused_before_it_is_looked_at(
    app, env_name, env_config, told
) -> None:
    error = open_session(app(), env_name, env_config)[1]["error"]
    assert error["kind"] == "invalid" and error["message"].startswith(told)


def test_an_experiment_hears_of_it_before_it_begins(make_experiment) -> None:
    experiment = make_experiment(env_name="Sokoban", level_file="levels.txt", max_steps=20)
    infra = load_infra(None, ["environments.placement=service", "environments.url=http://x"])
    with pytest.raises(ConfigError, match=r"envs\.game\.env_config\.level_file.*worker processes"):
        check_infra(experiment, infra)


def memory(pid: int) -> float:
    """Resident memory of a process, MiB."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


def stalled(url: str, headers: bytes, sent: int, stack: ExitStack) -> socket.socket:
    """A connection whose request announces 8 MB and never arrives whole."""
    host, _, port = url.removeprefix("http://").partition(":")
    connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
    connection.sendall(
        b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n" + headers + b"\r\n"
    )
    with suppress(OSError):  # it was thrown out already
        connection.sendall(b" " * sent)
    return connection


@pytest.mark.slow
def test_stalled_requests_take_neither_memory_nor_time(serve, tmp_path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"one:{TOKEN}\n")
    limits = ("--body-seconds", "3", "--max-buffered-bytes", str(16 << 20))
    server = serve("--workers", "0", "--tokens-file", str(tokens), *limits)
    before = memory(server.process.pid)
    known = f"Authorization: Bearer {TOKEN}\r\n".encode()
    with ExitStack() as stack:
        unknown = [stalled(server.url, b"", 7_000_000, stack) for _ in range(20)]
        assert all(b" 401 " in connection.recv(100) for connection in unknown[:3])
        assert memory(server.process.pid) - before < 40
        mine = [stalled(server.url, known, 7_000_000, stack) for _ in range(8)]
        with httpx.Client(
            base_url=server.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=20
        ) as client:
            assert client.get("/v1/sessions").status_code == 200, "others are served meanwhile"
            assert memory(server.process.pid) - before < 100
            statuses = {connection.recv(20)[9:12] for connection in mine}
            assert statuses == {b"503", b"408"}, "too many at a time, and too slow"
            assert "error" not in open_session(client)[1]
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as endless:
        endless.sendall(b"GET / HTTP/1.1\r\nX-A: ")
        with pytest.raises(OSError):
            for _ in range(1000):
                endless.sendall(b"a" * 10_000)
                time.sleep(0.001)


FOREIGN = '''
from vagen.envs.blackjack.env import BlackjackEnv

class Hungry(BlackjackEnv):
    """Its seed says what it does: 1 takes all memory, 2 never ends, 3 breaks."""

    def reset(self, *, seed=None, options=None):
        if seed == 1:
            self.held = bytearray(8 << 30)
        while seed == 2:
            pass
        if seed == 3:
            raise RuntimeError("the graphics are broken")
        return super().reset(seed=seed, options=options)
'''


@pytest.mark.slow
def test_one_session_cannot_take_the_others_with_it(serve, tmp_path) -> None:
    (tmp_path / "foreign.py").write_text(FOREIGN)
    path = os.pathsep.join([str(tmp_path), str(ROOT), *filter(None, sys.path)])
    limits = ("--answer-seconds", "16", "--worker-memory-mib", "600")
    server = serve(
        *("--workers", "1", "--environments", "foreign:Hungry,Blackjack", *limits),
        env={"PYTHONPATH": path},
    )
    with httpx.Client(base_url=server.url, timeout=60) as client:
        mine, _ = open_session(client, "Blackjack", {})
        assert reset(client, mine)["info"]
        (worker,) = server.workers()
        bad = [open_session(client, "foreign:Hungry", {})[0] for _ in range(3)]
        assert reset(client, bad[0], seed=1)["error"]["message"].startswith("MemoryError")
        assert memory(worker) < 700
        assert "took longer than 8 s" in reset(client, bad[1], seed=2)["error"]["message"]
        assert "broken" in reset(client, bad[2], seed=3)["error"]["message"]
        (answer,) = post(client, "/v1/sessions/expert", sessions=[mine])
        assert answer["response"], "nobody else's session is lost"
        deadline = time.monotonic() + 60
        fresh, opened = open_session(client, "Blackjack", {})
        assert "error" not in opened and reset(client, fresh)["info"]
        assert worker in server.workers() and len(server.workers()) == 2, "it had failed twice"
        post(client, "/v1/sessions/close", sessions=[mine, *bad])
        while worker in server.workers():
            assert time.monotonic() < deadline, "it ends with its last session"
            time.sleep(0.2)
        assert reset(client, fresh, 2)["info"]
