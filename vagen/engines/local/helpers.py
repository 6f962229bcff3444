"""Forked processes with one thread each that compute on the same weights as this process.

A batch is cut into units independently of the number of processes. Each unit is computed on one
thread, and results are summed in order of units. So the number of processes and the assignment of
units do not change results.

Units, results and errors travel between the processes as pickles: the helpers are forks of this
process, and nothing else can write to their pipes.
"""

import mmap
import multiprocessing
import pickle
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from vagen.forks import begin_fork

OnMessage = Callable[[Any], None]
"""Receives messages that a unit sends while it is computed."""
Unit = tuple[Any, ...]
"""Arguments of a method, without the last one, a callback for messages (`OnMessage`)."""
PARTS = 8
"""Maximum number of units of a small batch, so that several processes can share it."""
ALIGNMENT = 64
"""Alignment of parameters in shared memory in bytes, the same as torch's."""


class HelperLost(RuntimeError):
    """A helper process died."""


def possible_helpers(cores: int) -> int:
    """Number of useful helpers for a process that has `cores` to itself.

    0 where torch has used an accelerator (a fork could not compute gradients) and on macOS (forks
    are unsafe).
    """
    return min(cores, PARTS) - 1 if sys.platform == "linux" and not torch.cuda.is_available() else 0


class Helpers:
    """Forks of this process that call methods of one object on units of work.

    They have the object's state at the time of the fork, except for the parameters of its networks,
    which are in shared memory.
    """

    def __init__(self, target: Any, networks: Mapping[str, nn.Module], count: int):
        """Forks the helpers; this process computes units too.

        Args:
            target: The object whose methods are called.
            networks: Networks to train, by name, on a CPU.
            count: Number of helpers, at most `possible_helpers`.
        """
        self._target = target
        self.learning = {
            name: [p for p in network.parameters() if p.requires_grad]
            for name, network in networks.items()
        }
        """Trained parameters by network."""
        self._helpers: list[_Helper] = []
        if count == 0:
            return
        size = max(_share(parameters) for parameters in self.learning.values())
        for _ in range(count):
            self._helpers.append(_Helper(self, _shared_memory(size), list(self._helpers)))

    def map(self, method: str, units: Iterable[Unit], on_message: OnMessage) -> list[Any]:
        """The method's results for all units, in order.

        Args:
            method: Name of the target's method.
            units: Arguments of each call.
            on_message: Receives the units' messages, one at a time, in any order.

        Raises:
            HelperLost: A helper died.
        """
        return self._map(method, list(units), on_message, None)

    def add_gradients(
        self, network: str, method: str, units: Iterable[Unit], on_message: OnMessage
    ) -> list[Any]:
        """Like `map`, for methods that call `backward`: sums their gradients into the network."""
        units = list(units)
        if not self._helpers or len(units) == 1:
            return self._map(method, units, on_message, None)
        found = self._map(method, units, on_message, network)
        for _, gradients in found:
            for parameter, gradient in zip(self.learning[network], gradients, strict=True):
                if parameter.grad is None:
                    parameter.grad = gradient
                elif gradient is not None:
                    parameter.grad += gradient
        return [result for result, _ in found]

    def close(self) -> None:
        """Ends the helpers."""
        while self._helpers:
            self._helpers.pop().close()

    def call(self, method: str, unit: Unit, on_message: OnMessage, network: str | None) -> Any:
        """Computes one unit in this process, with its gradients if a network is named."""
        gradients = []
        try:
            result = getattr(self._target, method)(*unit, on_message)
        finally:
            for parameter in self.learning.get(network or "", ()):
                gradients.append(parameter.grad)
                parameter.grad = None
        return result if network is None else (result, gradients)

    def _map(
        self, method: str, units: list[Unit], on_message: OnMessage, network: str | None
    ) -> list[Any]:
        todo, results = deque(range(len(units))), [None] * len(units)
        lock = Lock()

        def deliver(message: Any) -> None:
            with lock:
                on_message(message)

        def take() -> int | None:
            try:
                return todo.popleft()
            except IndexError:
                return None

        def work(call: Callable[..., Any]) -> None:
            try:
                for i in iter(take, None):
                    results[i] = call(method, units[i], deliver, network)
            except BaseException:
                todo.clear()
                raise

        with ThreadPoolExecutor(max(1, len(self._helpers))) as threads:
            futures = [
                threads.submit(work, helper.call) for helper in self._helpers[: len(units) - 1]
            ]
            work(self.call)
        for one in futures:
            one.result()
        return results


class _Helper:
    """One fork, called over a pipe."""

    def __init__(self, owner: Helpers, slot: Tensor, siblings: Sequence["_Helper"]):
        """Forks.

        Args:
            owner: Its `call` computes the units.
            slot: Shared memory [parameters] for the gradients.
            siblings: Earlier helpers, whose pipes the fork closes.
        """
        self._slot, self._owner = slot, owner
        self._pipe, child_pipe = multiprocessing.Pipe()

        def serve() -> None:
            begin_fork()
            for helper in (self, *siblings):
                helper._pipe.close()
            torch.set_num_threads(1)
            self._serve(child_pipe)

        fork = multiprocessing.get_context("fork")
        self._process = fork.Process(target=serve, daemon=True)
        self._process.start()
        child_pipe.close()

    def call(self, method: str, unit: Unit, on_message: OnMessage, network: str | None) -> Any:
        """Computes one unit in the fork; see `Helpers.call`."""
        try:
            _send(self._pipe, (method, unit, network))
            while (answer := _receive(self._pipe))[0] == "said":
                on_message(answer[1])
        except (EOFError, OSError) as error:
            self._process.join(1)
            raise HelperLost(
                f"a process that computes beside the training died (exit code "
                f"{self._process.exitcode}; -9 is often a lack of memory)"
            ) from error
        kind, content = answer
        if kind == "raised":
            raise content
        if network is None:
            return content
        result, present = content
        rooms = _views(self._slot, self._owner.learning[network])
        gradients = [
            room.clone() if has_gradient else None
            for room, has_gradient in zip(rooms, present, strict=True)
        ]
        return result, gradients

    def close(self) -> None:
        """Ends it with a message: later forks may hold this end of the pipe open."""
        with suppress(OSError):  # it died
            _send(self._pipe, None)
        self._pipe.close()
        self._process.join()

    def _serve(self, pipe: Any) -> None:
        def send_message(message: Any) -> None:
            _send(pipe, ("said", message))

        while True:
            try:
                request = _receive(pipe)
            except EOFError:
                return
            if request is None:
                return
            method, unit, network = request
            try:
                found = self._owner.call(method, unit, send_message, network)
                if network is not None:
                    result, gradients = found
                    rooms = _views(self._slot, self._owner.learning[network])
                    for room, gradient in zip(rooms, gradients, strict=True):
                        if gradient is not None:
                            room.copy_(gradient)
                    found = (result, [gradient is not None for gradient in gradients])
                _send(pipe, ("done", found))
            except BrokenPipeError:  # the parent has gone
                return
            except Exception as error:
                _send(pipe, ("raised", _portable(error)))


def _send(pipe: Any, content: Any) -> None:
    """Sends without shared memory: `Connection.send` would create a file for every tensor."""
    pipe.send_bytes(pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL))


def _receive(pipe: Any) -> Any:
    return pickle.loads(pipe.recv_bytes())


def _portable(error: Exception) -> Exception:
    """The error, or a picklable one with the same message."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _places(parameters: Sequence[nn.Parameter]) -> tuple[list[int], int]:
    """First byte of each parameter in one contiguous buffer, and the buffer's size."""
    places, end = [], 0
    for parameter in parameters:
        places.append(end)
        end += -(-parameter.nbytes // ALIGNMENT) * ALIGNMENT
    return places, end


def _shared_memory(size: int) -> Tensor:
    """Shared memory, uint8 [size]; not in `/dev/shm`, which is small in containers."""
    return torch.frombuffer(mmap.mmap(-1, max(size, 1)), dtype=torch.uint8)


def _views(memory: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """A view into shared memory for each parameter."""
    places, _ = _places(parameters)
    return [
        memory[place : place + p.nbytes].view(p.dtype).view(p.shape)
        for place, p in zip(places, parameters, strict=True)
    ]


def _share(parameters: Sequence[nn.Parameter]) -> int:
    """Moves parameters to shared memory; returns the number of bytes."""
    _, size = _places(parameters)
    for parameter, room in zip(parameters, _views(_shared_memory(size), parameters), strict=True):
        room.copy_(parameter.detach())
        parameter.data = room
    return size
