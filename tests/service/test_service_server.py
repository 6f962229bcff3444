"""The service as its clients know it: lost connections, dead workers, its end."""

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time

import pytest

from vagen.config.infra import EnvironmentsConfig
from vagen.envs import make
from vagen.service import EnvironmentLost, EnvironmentRaised, Environments
from vagen.service.client import ServiceClient, served

pytestmark = pytest.mark.slow

OPTIONS = {"size": 8, "min_distance": 8, "p_frozen": 1.0}


class CuttingProxy:
    """Passes connections on; every so often it cuts one before its answer comes through."""

    def __init__(self, url: str, every: int):
        host, _, port = url.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self._every = every
        self._requests = 0
        self.cut = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            for source, sink, answers in ((near, far, False), (far, near, True)):
                threading.Thread(
                    target=self._pass, args=(source, sink, answers), daemon=True
                ).start()

    def _pass(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if answers and data.startswith(b"HTTP/"):
                    self._requests += 1
                    if self._requests % self._every == 0:
                        self.cut += 1
                        break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # also wakes the thread that reads from it
            end.close()

    def close(self) -> None:
        self._listener.close()


def test_a_client_that_loses_its_connection_goes_on_where_it_was(server) -> None:
    """Every third answer is lost after the service has done what was asked."""
    proxy = CuttingProxy(server.url, every=3)
    environments = Environments(EnvironmentsConfig(placement="service", url=proxy.url))
    far, near = environments.open("FrozenLake", OPTIONS), make("FrozenLake", OPTIONS)
    far.reset(seed=5)
    near.reset(seed=5)
    for _ in range(30):
        response = near.expert_response()
        _, reward, over, _, info = far.step(response)
        _, expected, ended, _, truth = near.step(response)
        assert (reward, over, info["state"]) == (expected, ended, truth["state"])
        if ended:
            far.reset(seed=6)
            near.reset(seed=6)
    far.close()
    environments.close()
    proxy.close()
    assert proxy.cut >= 10


def test_a_worker_killed_behind_the_service_is_an_error_and_no_reward(serve) -> None:
    server = serve("--workers", "1")
    environments = Environments(server.config())
    env = environments.open("FrozenLake", OPTIONS)
    env.reset(seed=1)
    (pid,) = server.workers()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EnvironmentLost, match=r"SIGKILL|no such session"):
        env.step("x")
    fresh = environments.open("FrozenLake", OPTIONS)
    fresh.reset(seed=1)
    assert fresh.step("x")[1] == 0.0
    assert server.metric("vagen_env_worker_deaths_total") == 1
    assert server.workers() != [pid]
    environments.close()


def test_a_service_away_for_a_while_is_waited_for_and_one_that_stays_away_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = EnvironmentsConfig(
        placement="service", url=f"http://127.0.0.1:{port}", retry_seconds=1.0
    )
    begun = time.monotonic()
    with pytest.raises(EnvironmentLost, match=r"gave no answer for 1 s: ClientConnectorError"):
        Environments(config).open("FrozenLake", {})
    assert time.monotonic() - begun < 5


def test_tokens_come_from_the_environment_and_a_wrong_one_is_told(
    serve, tmp_path, monkeypatch
) -> None:
    path = tmp_path / "tokens"
    path.write_text("trainer:correct-horse-battery\n")
    server = serve("--workers", "0", "--tokens-file", str(path))
    monkeypatch.delenv("VAGEN_ENV_TOKEN", raising=False)
    with pytest.raises(EnvironmentLost, match="refuses with 401: a valid token"):
        served(server.config())
    monkeypatch.setenv("VAGEN_ENV_TOKEN", "correct-horse-battery")
    assert "FrozenLake" in served(server.config())
    monkeypatch.setenv("OTHER", "wrong-horse-battery")
    with pytest.raises(EnvironmentLost, match="401") as refused:
        served(server.config(token_env="OTHER"))
    assert "wrong-horse" not in str(refused.value)


def test_a_full_service_makes_clients_wait_and_none_fail(serve) -> None:
    server = serve("--workers", "0", "--max-sessions", "3")

    async def main() -> list[float]:
        client = ServiceClient(server.config())

        async def episode(k: int) -> float:
            env = await client.open("FrozenLake", OPTIONS, "train")
            await env.ask("reset", seed=k, options=None)
            reply = await env.ask("step", response="x")
            await env.close()
            return reply.content["reward"]

        rewards = await asyncio.gather(*(episode(k) for k in range(12)))
        await client.close()
        return rewards

    assert asyncio.run(main()) == [0.0] * 12
    assert server.metric('vagen_env_sessions{env_name="FrozenLake"}') == 0


def test_wrong_options_are_told_by_the_service_as_here(server) -> None:
    environments = Environments(server.config())
    with pytest.raises(EnvironmentRaised, match="LevelError"):
        environments.open("FrozenLake", {"size": 2, "min_distance": 4}, "test").reset(seed=0)
    environments.close()


def test_it_drains_before_it_ends(serve) -> None:
    server = serve("--workers", "1")
    environments = Environments(server.config(retry_seconds=0.5))
    env = environments.open("FrozenLake", OPTIONS)
    env.reset(seed=1)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    env.step("x")
    with pytest.raises(EnvironmentLost, match="503: the service is about to end"):
        environments.open("FrozenLake", OPTIONS)
    assert server.process.poll() is None, "the session is still open"
    workers = server.workers()
    env.close()
    assert server.process.wait(20) == 0
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    environments.close()


def test_a_soak_leaves_nothing_behind(serve) -> None:
    """The short form of `benchmarks/service_soak.py`."""
    from benchmarks.service_soak import soak

    server = serve("--workers", "1", "--idle-seconds", "3")
    report = soak(server.url, server.process.pid, steps=3000, sessions=32)
    assert report["steps"] >= 3000 and report["dropped_sessions"] > 0
    assert report["growth"]["processes"] == 0
    assert report["growth"]["files"] <= 2
    assert report["growth"]["memory_mib"] < 24
    assert report["sessions_left"] == 0
