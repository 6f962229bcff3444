"""How fast an engine computes: tokens per second and, on GPUs, utilisation and memory."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

GIB = 1 << 30


@dataclass(slots=True)
class _Total:
    """Calls of one kind, added up."""

    tokens: int = 0
    seconds: float = 0.0
    utilised: float = 0.0
    """Seconds times utilisation."""
    allocated: int = 0
    reserved: int = 0


class Performance:
    """Adds up what the calls of an engine measured, until somebody takes it.

    A call is `logprobs`, `reference`, `values`, `update_actor` or `update_critic`.
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
        """Counts one call.

        Args:
            call: Its kind.
            tokens: Of all its rows.
            seconds: That the networks took.
            mfu: Share of the GPUs' arithmetic that the model's needs, 0 to 1; 0 if not known.
            allocated: Most bytes of tensors on a GPU; 0 without one.
            reserved: Most bytes that torch took of a GPU; 0 without one.
        """
        total = self._totals.setdefault(call, _Total())
        total.tokens += tokens
        total.seconds += seconds
        total.utilised += mfu * seconds
        total.allocated = max(total.allocated, allocated)
        total.reserved = max(total.reserved, reserved)

    @contextmanager
    def measured(self, call: str, tokens: int, device: torch.device) -> Iterator[None]:
        """Counts the block as a call of this process on a device."""
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
        """Metrics of all calls since the last time, as `vagen.metrics` declares them."""
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
    """Begins to record what this process computes, on GPUs as well."""
    trace = torch.profiler.profile()
    trace.start()
    return trace


def write_trace(trace: torch.profiler.profile, path: Path) -> None:
    """Ends a trace and writes it, for chrome://tracing or Perfetto; `.gz` is compressed."""
    trace.stop()
    path.parent.mkdir(parents=True, exist_ok=True)
    trace.export_chrome_trace(str(path))
