"""Speed of an engine: tokens per second and, on GPUs, utilisation and memory."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

GIB = 1 << 30


@dataclass(slots=True)
class _Total:
    """Totals over all calls of one kind."""

    tokens: int = 0
    seconds: float = 0.0
    utilised: float = 0.0
    """Sum of seconds times utilisation."""
    allocated: int = 0
    reserved: int = 0


class Performance:
    """Accumulates measurements of an engine's calls until `take`.

    Kinds of calls are `logprobs`, `reference`, `values`, `update_actor` and `update_critic`.
    """

    def __init__(self) -> None:
        self._totals: dict[str, _Total] = {}

    def add(
        self,
        call: str,
        *,
        tokens: int,
        seconds: float,
        mfu: float = 0.0,
        allocated: int = 0,
        reserved: int = 0,
    ) -> None:
        """Adds one call.

        Args:
            call: Kind of the call.
            tokens: Tokens of all its rows.
            seconds: Time of the networks.
            mfu: Model FLOPs utilisation of the GPUs, 0 to 1; 0 if unknown.
            allocated: Peak bytes of tensors on a GPU; 0 without one.
            reserved: Peak bytes that torch reserved on a GPU; 0 without one.
        """
        total = self._totals.setdefault(call, _Total())
        total.tokens += tokens
        total.seconds += seconds
        total.utilised += mfu * seconds
        total.allocated = max(total.allocated, allocated)
        total.reserved = max(total.reserved, reserved)

    @contextmanager
    def measured(self, call: str, tokens: int, device: torch.device) -> Iterator[None]:
        """Measures the block as a call of this process on a device."""
        cuda = device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
        start = time.perf_counter()
        yield
        memory = {}
        if cuda:
            torch.cuda.synchronize(device)
            memory["allocated"] = torch.cuda.max_memory_allocated(device)
            memory["reserved"] = torch.cuda.max_memory_reserved(device)
        self.add(call, tokens=tokens, seconds=time.perf_counter() - start, **memory)

    def take(self) -> dict[str, float]:
        """Metrics of all calls since the last `take`, as `vagen.metrics` declares them."""
        metrics = {}
        for call, total in self._totals.items():
            values = {
                "tokens_per_second": total.tokens / total.seconds if total.seconds else 0.0,
                "mfu": total.utilised / total.seconds if total.seconds else 0.0,
                "max_memory_allocated": total.allocated / GIB,
                "max_memory_reserved": total.reserved / GIB,
            }
            metrics |= {f"perf/{call}/{name}": value for name, value in values.items() if value}
        self._totals.clear()
        return metrics


def start_trace() -> torch.profiler.profile:
    """Starts a profile of this process, including GPUs."""
    trace = torch.profiler.profile()
    trace.start()
    return trace


def write_trace(trace: torch.profiler.profile, path: Path) -> None:
    """Ends a profile and writes it for chrome://tracing or Perfetto; `.gz` is compressed."""
    trace.stop()
    path.parent.mkdir(parents=True, exist_ok=True)
    trace.export_chrome_trace(str(path))
