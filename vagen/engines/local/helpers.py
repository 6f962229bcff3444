"""Processes that compute beside this one, on the same weights, one thread each.

Work on a batch comes in units, cut by the batch alone. A unit is computed by itself, on one thread,
and what units add up to is added in their order. So how many processes there are, and which of them
takes which unit, changes no number.
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
"""Takes what a unit says while it is computed."""
Unit = tuple[Any, ...]
"""Arguments of a method, but for the last one, which is where to say things (`OnMessage`)."""
PARTS = 8
"""Most units that a batch is cut into if few would do, so that several can be computed at once."""
ALIGNMENT = 64
"""Bytes that the place of a parameter in shared memory is a multiple of, as torch's own are."""


class HelperLost(RuntimeError):
    """A helper process died."""


def possible_helpers(cores: int) -> int:
    """How many helpers are of use to a process on a number of cores that are its own.

    A fork cannot compute gradients where torch has seen an accelerator, and is not safe on macOS.
    """
    return min(cores, PARTS) - 1 if sys.platform == "linux" and not torch.cuda.is_available() else 0


class Helpers:
    """Forks of this process that do units of work with the methods of one object.

    They see the object as it was when they were made, but for the parameters of its networks, which
    are in shared memory: they are this process's own.
    """

    def __init__(self, target: Any, networks: Mapping[str, nn.Module], count: int):
        """Makes them; this process takes its share of the units too.

        Args:
            target: Whose methods are called.
            networks: Those that learn, by name, on a CPU.
            count: Helpers, at most what `possible_helpers` says.
        """
        self._target = target
        self._learning = {name: _trained(network) for name, network in networks.items()}
        self._helpers: list[_Helper] = []
        if count == 0:
            return
        size = max(_share(parameters) for parameters in self._learning.values())
        for _ in range(count):
            self._helpers.append(_Helper(self, _shared_memory(size), list(self._helpers)))

    def map(self, method: str, units: Iterable[Unit], hear: OnMessage) -> list[Any]:
        """What the method returns for each unit, in their order.

        Args:
            method: Name of the target's method.
            units: Its arguments.
            hear: Receives what the units say, one at a time, in any order.

        Raises:
            HelperLost: A helper died.
        """
        return self._map(method, list(units), hear, None)

    def add_gradients(
        self, network: str, method: str, units: Iterable[Unit], hear: OnMessage
    ) -> list[Any]:
        """As `map`, of units that call `backward`: leaves the network with the sum of gradients."""
        units = list(units)
        if not self._helpers or len(units) == 1:
            return self._map(method, units, hear, None)
        found = self._map(method, units, hear, network)
        for _, gradients in found:
            for parameter, gradient in zip(self._learning[network], gradients, strict=True):
                if parameter.grad is None:
                    parameter.grad = gradient
                elif gradient is not None:
                    parameter.grad += gradient
        return [result for result, _ in found]

    def close(self) -> None:
        """Ends them."""
        while self._helpers:
            self._helpers.pop().close()

    def call(self, method: str, unit: Unit, hear: OnMessage, network: str | None) -> Any:
        """Does one unit in this process, with its gradients if a network is named."""
        gradients = []
        try:
            result = getattr(self._target, method)(*unit, hear)
        finally:
            for parameter in self._learning.get(network or "", ()):
                gradients.append(parameter.grad)
                parameter.grad = None
        return result if network is None else (result, gradients)

    def pack(self, network: str, slot: Tensor, gradients: list[Tensor | None]) -> list[bool]:
        """Puts gradients into shared memory; says which there are."""
        for room, gradient in zip(_views(slot, self._learning[network]), gradients, strict=True):
            if gradient is not None:
                room.copy_(gradient)
        return [gradient is not None for gradient in gradients]

    def unpack(self, network: str, slot: Tensor, present: list[bool]) -> list[Tensor | None]:
        """The inverse of `pack`."""
        rooms = _views(slot, self._learning[network])
        return [
            room.clone() if is_there else None
            for room, is_there in zip(rooms, present, strict=True)
        ]

    def _map(
        self, method: str, units: list[Unit], hear: OnMessage, network: str | None
    ) -> list[Any]:
        todo, results = deque(range(len(units))), [None] * len(units)
        one_at_a_time = Lock()

        def heard(said: Any) -> None:
            with one_at_a_time:
                hear(said)

        def take() -> int | None:
            try:
                return todo.popleft()
            except IndexError:
                return None

        def work(call: Callable[..., Any]) -> None:
            try:
                for i in iter(take, None):
                    results[i] = call(method, units[i], heard, network)
            except BaseException:
                todo.clear()
                raise

        with ThreadPoolExecutor(max(1, len(self._helpers))) as threads:
            asked = [
                threads.submit(work, helper.call) for helper in self._helpers[: len(units) - 1]
            ]
            work(self.call)
        for one in asked:
            one.result()
        return results


class _Helper:
    """One fork, asked over a pipe."""

    def __init__(self, owner: Helpers, slot: Tensor, siblings: Sequence["_Helper"]):
        """Forks.

        Args:
            owner: Whose `call` it serves.
            slot: Shared memory [parameters] that its gradients come back in.
            siblings: Made before: their pipes are not its own.
        """
        self._slot, self._owner = slot, owner
        self._pipe, there = multiprocessing.Pipe()

        def serve() -> None:
            begin_fork()
            for helper in (self, *siblings):
                helper._pipe.close()
            torch.set_num_threads(1)
            self._serve(there)

        fork = multiprocessing.get_context("fork")
        self._process = fork.Process(target=serve, daemon=True)
        self._process.start()
        there.close()

    def call(self, method: str, unit: Unit, hear: OnMessage, network: str | None) -> Any:
        """Has one unit done; see `Helpers.call`."""
        try:
            _send(self._pipe, (method, unit, network))
            while (answer := _receive(self._pipe))[0] == "said":
                hear(answer[1])
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
        return result, self._owner.unpack(network, self._slot, present)

    def close(self) -> None:
        """Ends it, by a word: a later fork may hold this end of the pipe open."""
        with suppress(OSError):  # it died
            _send(self._pipe, None)
        self._pipe.close()
        self._process.join()

    def _serve(self, pipe: Any) -> None:
        def say(what: Any) -> None:
            _send(pipe, ("said", what))

        while True:
            try:
                told = _receive(pipe)
            except EOFError:
                return
            if told is None:
                return
            method, unit, network = told
            try:
                found = self._owner.call(method, unit, say, network)
                if network is not None:
                    found = (found[0], self._owner.pack(network, self._slot, found[1]))
                _send(pipe, ("done", found))
            except BrokenPipeError:  # nobody waits for it any more
                return
            except Exception as error:
                _send(pipe, ("raised", _portable(error)))


def _send(pipe: Any, content: Any) -> None:
    """`Connection.send` would put every tensor into a file of shared memory."""
    pipe.send_bytes(pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL))


def _receive(pipe: Any) -> Any:
    return pickle.loads(pipe.recv_bytes())


def _portable(error: Exception) -> Exception:
    """The error, or one that says the same, such that it can be sent."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _trained(network: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def _places(parameters: Sequence[nn.Parameter]) -> tuple[list[int], int]:
    """Byte at which each parameter begins when they lie behind one another, and bytes of all."""
    places, end = [], 0
    for parameter in parameters:
        places.append(end)
        end += -(-parameter.nbytes // ALIGNMENT) * ALIGNMENT
    return places, end


def _shared_memory(size: int) -> Tensor:
    """uint8 [size] that forks see; not of `/dev/shm`, which containers keep small."""
    return torch.frombuffer(mmap.mmap(-1, max(size, 1)), dtype=torch.uint8)


def _views(memory: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Room for each parameter in shared memory."""
    places, _ = _places(parameters)
    return [
        memory[place : place + p.nbytes].view(p.dtype).view(p.shape)
        for place, p in zip(places, parameters, strict=True)
    ]


def _share(parameters: Sequence[nn.Parameter]) -> int:
    """Moves parameters to shared memory; returns its bytes."""
    _, size = _places(parameters)
    for parameter, room in zip(parameters, _views(_shared_memory(size), parameters), strict=True):
        room.copy_(parameter.detach())
        parameter.data = room
    return size
