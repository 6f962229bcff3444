"""A worker process: `python -m vagen.service.worker <descriptor of its socket> <seconds> <MiB>`.

Holds environments by number. Reads lists of calls and executes them in order until the connection
is closed. A call that exceeds the seconds or the MiB (0: no limit) fails alone. Output of
environments goes to standard error.
"""

import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson

from vagen.envs import make
from vagen.envs.answers import begun, stepped
from vagen.envs.base import AgentEnv
from vagen.service.base import EnvironmentRaised
from vagen.service.wire import Blob, Encoding, WireReply, receive, send, show

HOLD_SECONDS = 0.005
"""Replies are sent together unless one has waited this long."""

Call = dict[str, Any]
"""`{"op": ..., "env": number, ...}`, JSON-serialisable."""


class Host:
    """Holds environments and executes calls, one after the other."""

    def __init__(self) -> None:
        self._envs: dict[int, tuple[AgentEnv, Encoding]] = {}
        self._ops: dict[str, Callable[[Call], WireReply]] = {
            "warm_up": self._warm_up,
            "create": self._create,
            "reset": self._reset,
            "step": self._step,
            "expert": self._expert,
            "summary": self._summary,
            "close": self._close,
        }

    def answer(self, call: Call) -> WireReply:
        """Executes a call; a failure of the environment becomes `{"error": ...}`.

        `fault` is False for errors of the caller (`ValueError`).
        """
        try:
            return self._ops[call["op"]](call)
        except Exception as error:  # any failure of an environment
            fault = not isinstance(error, ValueError)
            return WireReply({"error": str(EnvironmentRaised.of(error)), "fault": fault})

    def answer_json(self, call: Call) -> tuple[bytes, list[Blob]]:
        """`answer` with content as JSON; returns an error if the content cannot be JSON."""
        reply = self.answer(call)
        try:
            return orjson.dumps(reply.content), list(reply.frames)
        except TypeError as error:
            text = f"TypeError: the environment's answer to {call['op']!r} is no JSON: {error}"
            return orjson.dumps({"error": text}), []

    def _warm_up(self, call: Call) -> WireReply:
        """Loads the simulator and draws a frame, so that no episode has to wait for it."""
        env = make(call["env_name"], call["env_config"], call["split"])
        env.reset(seed=0)
        env.close()
        return WireReply({})

    def _create(self, call: Call) -> WireReply:
        """`{env, env_name, env_config, split, encoding}` → `{system_prompt}`.

        The caller chooses the number.
        """
        env = make(call["env_name"], call["env_config"], call["split"])
        self._envs[call["env"]] = (env, call["encoding"])
        return WireReply({"system_prompt": env.system_prompt()})

    def _reset(self, call: Call) -> WireReply:
        """`{env, seed, options}` → `{observation, info}`."""
        env, encoding = self._envs[call["env"]]
        result = env.reset(seed=call["seed"], options=call["options"])
        observation, info = begun(env, result)
        shown, frames = show(observation, encoding)
        return WireReply({"observation": shown, "info": info}, frames)

    def _step(self, call: Call) -> WireReply:
        """`{env, response}` → `{observation, reward, terminated, truncated, info}`."""
        env, encoding = self._envs[call["env"]]
        result = stepped(env, env.step(call["response"]))
        observation, reward, terminated, truncated, info = result
        shown, frames = show(observation, encoding)
        content = {
            "observation": shown,
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "info": info,
        }
        return WireReply(content, frames)

    def _expert(self, call: Call) -> WireReply:
        """`{env}` → `{response}`."""
        return WireReply({"response": self._envs[call["env"]][0].expert_response()})

    def _summary(self, call: Call) -> WireReply:
        """`{env}` → `{response}`."""
        return WireReply({"response": self._envs[call["env"]][0].expert_summary()})

    def _close(self, call: Call) -> WireReply:
        """`{env}` → `{}`; ignores unknown numbers."""
        if (held := self._envs.pop(call["env"], None)) is not None:
            held[0].close()
        return WireReply({})


def serve(connection: socket.socket, seconds: float) -> None:
    """Executes calls until the stream ends.

    Args:
        connection: Socket for calls and replies.
        seconds: Time limit of a call; 0 for none.
    """

    def give_up(*_: object) -> None:
        raise TimeoutError(f"it took longer than {seconds:g} s")

    signal.signal(signal.SIGALRM, give_up)
    host = Host()
    while (message := receive(connection)) is not None:
        answers: list[list[Any]] = []
        frames: list[Blob] = []
        held_since = time.monotonic()
        for number, call in message["calls"]:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            content, shown = host.answer_json(call)
            signal.setitimer(signal.ITIMER_REAL, 0)
            answers.append([number, orjson.Fragment(content), len(shown)])
            frames += shown
            if time.monotonic() - held_since > HOLD_SECONDS:
                send(connection, {"answers": answers}, frames)
                answers, frames, held_since = [], [], time.monotonic()
        if answers:
            send(connection, {"answers": answers}, frames)


def main() -> None:
    """Runs a worker with the arguments of the command line."""
    descriptor, seconds, mib = sys.argv[1:]
    if int(mib):
        limit = int(mib) << 20
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes the stream
    os.dup2(2, 1)
    with (
        socket.socket(fileno=int(descriptor)) as connection,
        suppress(BrokenPipeError, ConnectionResetError),  # the parent has gone
    ):
        serve(connection, float(seconds))


if __name__ == "__main__":
    main()
