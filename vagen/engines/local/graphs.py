"""Decode steps of fixed shapes, which a GPU replays as CUDA graphs.

An ordinary decode step launches some thousand small kernels, and the GPU waits for their launches.
A recorded one is a single launch. Its shapes are fixed, so the number of rows and the reach of the
cache are rounded up, and a step is recorded for every pair that occurs.

Without a GPU the same steps run on the same buffers, unrecorded.

Shape legend: A rows, rounded up.
"""

from collections.abc import Callable

import torch
from torch import Tensor

LEAST_REACH = 256
"""Tokens of the cache that the shortest recorded step reads."""

Compute = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""Ids [A, 1], positions [3, A, 1], start [A] and reach to hidden states [A, 1, hidden]."""


def rounded(number: int, least: int = 1) -> int:
    """The next power of two, at least `least`."""
    return max(least, 1 << (number - 1).bit_length())


class DecodeSteps:
    """The recorded steps of one cache; they end when its memory moves."""

    def __init__(self, compute: Compute):
        """Records nothing yet."""
        self._compute = compute
        self._steps: dict[tuple[int, int], _Step] = {}

    def __call__(self, ids: Tensor, positions: Tensor, start: Tensor, reach: int) -> Tensor:
        """Hidden states [A, 1, hidden], valid until the next call.

        Args:
            ids: int64 [A, 1].
            positions: int64 [3, A, 1].
            start: int64 [A]: tokens in each slot.
            reach: Columns of the cache to attend to.
        """
        key = (len(ids), reach)
        if key not in self._steps:
            self._steps[key] = _Step(self._compute, ids, positions, start, reach)
        return self._steps[key](ids, positions, start)

    def clear(self) -> None:
        """Forgets all steps."""
        self._steps.clear()


class _Step:
    def __init__(self, compute: Compute, ids: Tensor, positions: Tensor, start: Tensor, reach: int):
        self._inputs = (ids.clone(), positions.clone(), start.clone())
        self._run = lambda: compute(*self._inputs, reach)
        self._graph = None
        if ids.is_cuda:
            # Kernels choose their algorithms before the recording. What this writes to the cache
            # is what the replay writes again.
            beside = torch.cuda.Stream()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                self._run()
            torch.cuda.current_stream().wait_stream(beside)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._out = self._run()

    def __call__(self, *inputs: Tensor) -> Tensor:
        for buffer, given in zip(self._inputs, inputs, strict=True):
            buffer.copy_(given)
        if self._graph is None:
            return self._run()
        self._graph.replay()
        return self._out
