"""Speed and memory of the advantage estimators.

Against plain token loops in the same process: torch scalars, row by row and token by token, as the
published trainers have it (`masked_gae`, `bi_level_gae` and `turn_wise_gae` of the VAGEN fork of
verl loop over positions like that; its `gae` is a loop over columns and is measured as such).
Both sides without whitening, ours with the checks of its arguments.
Then time over a grid of batch sizes and lengths, with the exponent of a power law in B * T, and
peak memory of a fresh process, beside the size of the arguments.

    python benchmarks/advantage.py [--repeats 5] [--quick] [--output results/advantage.json]
"""

import argparse
import datetime
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine
from torch import Tensor

from vagen.advantage import estimate_advantages

OPTIONS: dict[str, Any] = {"gamma": 0.99, "lam": 0.95, "high_level_gamma": 0.95, "whiten": False}
CASES = [(128, 2400, 3, 50.0), (128, 8000, 10, 100.0)]
"""Rows, tokens, turns, aimed speed-up."""
ESTIMATORS = ("gae", "masked_gae", "turn_wise_gae", "bi_level_gae")
OTHERS = ("adaptive_credit", "no_concat_gae", "masked_grpo", "gigpo", "reinforce_plus_plus")
GRID_ROWS, GRID_TOKENS = (64, 256, 1024), (1000, 4000, 16000)
MEMORY_CASES = [(128, 8000, 10), (1024, 16000, 10)]


def make_batch(rows: int, tokens: int, turns: int) -> dict[str, Any]:
    """A full batch: turns of equal length, the first 60 % of each observation."""
    generator = torch.Generator().manual_seed(0)
    length = tokens // turns
    place = torch.arange(tokens)
    within = place % length
    real = place < turns * length
    sampled = (within >= 0.6 * length) & real
    ends = (within == length - 1) & real
    mask = sampled.expand(rows, tokens).contiguous()
    end_mask = ends.expand(rows, tokens).contiguous()
    values = torch.randn(rows, tokens, generator=generator)
    return {
        "rewards": torch.randn(rows, tokens, generator=generator) * end_mask,
        "values": values,
        "loss_mask": mask,
        "turn_end_mask": end_mask,
        "attention_mask": torch.ones(rows, tokens, dtype=torch.bool),
        "group_ids": torch.arange(rows) // 8,
    }


def with_anchors(batch: dict[str, Any]) -> dict[str, Any]:
    """What `gigpo` reads beside."""
    return {**batch, "anchor_ids": batch["turn_end_mask"].cumsum(1)}


def size_of(batch: dict[str, Any]) -> int:
    """Bytes of all tensors."""
    return sum(x.numel() * x.element_size() for x in batch.values() if isinstance(x, Tensor))


# The plain loops: correct, and compared with the estimators before anything is timed.


def gae_loop(batch: dict[str, Any], rows: range) -> tuple[Tensor, Tensor]:
    """Over columns, all rows at once, as verl's `compute_gae_advantage_return`."""
    rewards, values = (batch[key][rows.start : rows.stop] for key in ("rewards", "values"))
    reversed_advantages = []
    length = rewards.shape[1]
    carry = torch.zeros_like(values[:, 0])
    for t in reversed(range(length)):
        following = values[:, t + 1] if t < length - 1 else 0.0
        delta = rewards[:, t] + OPTIONS["gamma"] * following - values[:, t]
        carry = delta + OPTIONS["gamma"] * OPTIONS["lam"] * carry
        reversed_advantages.append(carry)
    advantages = torch.stack(reversed_advantages[::-1], dim=1)
    return advantages, advantages + values


def masked_gae_loop(batch: dict[str, Any], rows: range) -> tuple[Tensor, Tensor]:
    """Row by row, from one sampled token to the one before."""
    rewards, values, mask = (batch[key] for key in ("rewards", "values", "loss_mask"))
    advantages = torch.zeros(len(rows), rewards.shape[1])
    returns = torch.zeros_like(advantages)
    for b in rows:
        positions = mask[b].nonzero(as_tuple=True)[0]
        carry: Tensor | float = 0.0
        following: Tensor | float = 0.0
        for i in range(len(positions) - 1, -1, -1):
            t = positions[i]
            delta = rewards[b, t] + OPTIONS["gamma"] * following - values[b, t]
            carry = delta + OPTIONS["gamma"] * OPTIONS["lam"] * carry
            advantages[b - rows.start, t] = carry
            returns[b - rows.start, t] = carry + values[b, t]
            following = values[b, t]
    return advantages, returns


def _turn_loop(batch: dict[str, Any], b: int) -> dict[int, Tensor]:
    """Advantage of each turn of a row, by the position of its end."""
    rewards, values = batch["rewards"], batch["values"]
    found: dict[int, Tensor] = {}
    carry = following = rewards.new_zeros(())
    gamma, lam = OPTIONS["high_level_gamma"], OPTIONS["lam"]
    for t in reversed(batch["turn_end_mask"][b].nonzero(as_tuple=True)[0].tolist()):
        carry = rewards[b, t] + gamma * following - values[b, t] + gamma * lam * carry
        following = values[b, t]
        found[t] = carry
    return found


def turn_wise_gae_loop(batch: dict[str, Any], rows: range) -> tuple[Tensor, Tensor]:
    """Turns backwards, then each token looks for the end of its turn."""
    values, mask = batch["values"], batch["loss_mask"]
    advantages = torch.zeros(len(rows), mask.shape[1])
    returns = torch.zeros_like(advantages)
    for b in rows:
        turns = _turn_loop(batch, b)
        current = torch.tensor(0.0)
        for t in range(mask.shape[1] - 1, -1, -1):
            if t in turns:
                current = turns[t]
                returns[b - rows.start, t] = current + values[b, t]
            if mask[b, t]:
                advantages[b - rows.start, t] = current
    return advantages, returns


def bi_level_gae_loop(batch: dict[str, Any], rows: range) -> tuple[Tensor, Tensor]:
    """Turns backwards, then the tokens of each turn backwards."""
    rewards, values, mask = (batch[key] for key in ("rewards", "values", "loss_mask"))
    advantages = torch.zeros(len(rows), mask.shape[1])
    returns = torch.zeros_like(advantages)
    for b in rows:
        turns = _turn_loop(batch, b)
        carry: Tensor | float = 0.0
        following: Tensor | float = 0.0
        for t in range(mask.shape[1] - 1, -1, -1):
            if not mask[b, t]:
                continue
            if t in turns:
                carry = turns[t]
            else:
                delta = rewards[b, t] + OPTIONS["gamma"] * following - values[b, t]
                carry = delta + OPTIONS["gamma"] * OPTIONS["lam"] * carry
            following = values[b, t]
            advantages[b - rows.start, t] = carry
            returns[b - rows.start, t] = carry + values[b, t]
    return advantages, returns


LOOPS: dict[str, Callable[[dict[str, Any], range], tuple[Tensor, Tensor]]] = {
    "gae": gae_loop,
    "masked_gae": masked_gae_loop,
    "turn_wise_gae": turn_wise_gae_loop,
    "bi_level_gae": bi_level_gae_loop,
}


def timed(function: Callable[[], Any]) -> float:
    """CPU seconds of this process, all threads."""
    start = time.process_time()
    function()
    return time.process_time() - start


def compare(name: str, case: tuple[int, int, int, float], repeats: int) -> dict[str, Any]:
    """One estimator against its loop.

    A loop over scalars takes the same for every row: a few rows are timed and the time is scaled up
    to the batch. The loop over columns is timed on all rows.
    """
    rows, tokens, turns, aim = case
    batch = make_batch(rows, tokens, turns)
    part = range(rows) if name == "gae" else range(4)
    expected = LOOPS[name](batch, part)
    found = estimate_advantages(name, **batch, **OPTIONS)
    for x, y in zip(found[:2], expected, strict=True):
        torch.testing.assert_close(x[: len(part)], y, rtol=1e-3, atol=1e-3)
    ours = [timed(lambda: estimate_advantages(name, **batch, **OPTIONS)) for _ in range(repeats)]
    loops = [timed(lambda: LOOPS[name](batch, part)) for _ in range(max(2, repeats // 3))]
    loop = statistics.median(loops) * rows / len(part)
    times = loop / statistics.median(ours)
    return {
        "estimator": name,
        "rows": rows,
        "tokens": tokens,
        "turns": turns,
        "loop": "over columns, vectors of all rows" if name == "gae" else "over tokens, scalars",
        "rows_timed_in_loop": len(part),
        "loop_seconds": round(loop, 4),
        "seconds": round(statistics.median(ours), 5),
        "slowest": round(max(ours), 5),
        "fastest": round(min(ours), 5),
        "times": round(times, 1),
        "aim": None if name == "gae" else aim,
        "met": None if name == "gae" else times >= aim,
    }


def grow(name: str, repeats: int, rows: tuple[int, ...], tokens: tuple[int, ...]) -> dict[str, Any]:
    """Time over B and T, ten turns, and the exponent of B * T by least squares in logarithms."""
    points = []
    for b in rows:
        for t in tokens:
            batch = make_batch(b, t, 10)
            if name == "gigpo":
                batch = with_anchors(batch)
            seconds = min(
                timed(lambda batch=batch: estimate_advantages(name, **batch, **OPTIONS))
                for _ in range(repeats)
            )
            points.append({"rows": b, "tokens": t, "seconds": round(seconds, 5)})
    xs = [math.log(p["rows"] * p["tokens"]) for p in points]
    ys = [math.log(p["seconds"]) for p in points]
    slope, _ = statistics.linear_regression(xs, ys)
    return {"estimator": name, "exponent": round(slope, 3), "points": points}


def peak_memory(name: str, rows: int, tokens: int, turns: int) -> dict[str, Any]:
    """Runs the estimator in a fresh process and asks the system for its greatest resident set."""
    command = [sys.executable, __file__, "--peak-of", name, str(rows), str(tokens), str(turns)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    before, after, size = json.loads(output)
    return {
        "estimator": name,
        "rows": rows,
        "tokens": tokens,
        "arguments_mib": round(size / 2**20, 1),
        "peak_mib": round((after - before) / 2**20 + size / 2**20, 1),
        "times_arguments": round((after - before) / size + 1, 2),
        "aim": 4.0,
    }


def report_peak(name: str, rows: int, tokens: int, turns: int) -> None:
    """Prints resident bytes with the arguments made, the peak after the call, and their size."""
    # What torch loads on first use is not the estimator's.
    small = with_anchors(make_batch(4, 64, 2))
    estimate_advantages(name, **small, **OPTIONS | {"whiten": True})
    batch = make_batch(rows, tokens, turns)
    if name == "gigpo":
        batch = with_anchors(batch)
    # Making the batch took more for a moment: the mark is set back to what is resident now.
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    estimate_advantages(name, **batch, **OPTIONS | {"whiten": True})
    print(json.dumps([before, _status("VmHWM"), size_of(batch)]))


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a small grid, to try it out")
    parser.add_argument("--peak-of", nargs=4, help=argparse.SUPPRESS)
    default = Path(__file__).parent / "results" / "advantage.json"
    parser.add_argument("--output", type=Path, default=default)
    arguments = parser.parse_args()
    if arguments.peak_of:
        name, *sizes = arguments.peak_of
        report_peak(name, *map(int, sizes))
        return

    torch.set_num_threads(1)
    machine = describe_machine(torch=torch.__version__, threads=1)
    speed = []
    for case in CASES:
        for name in ESTIMATORS:
            result = compare(name, case, arguments.repeats)
            speed.append(result)
            verdict = "" if result["met"] is None else "met" if result["met"] else "MISSED"
            print(
                f"{name:20} {case[0]}x{case[1]} {case[2]:>2} turns {result['seconds']:>9.4f} s "
                f"loop {result['loop_seconds']:>9.2f} s {result['times']:>8.1f}x {verdict}",
                flush=True,
            )
    rows, tokens = (GRID_ROWS[:2], GRID_TOKENS[:2]) if arguments.quick else (GRID_ROWS, GRID_TOKENS)
    growth = []
    for name in (*ESTIMATORS, *OTHERS):
        growth.append(grow(name, 3, rows, tokens))
        last = growth[-1]["points"][-1]
        print(
            f"{name:20} time ~ (B T)^{growth[-1]['exponent']:.2f}; "
            f"{last['rows']}x{last['tokens']}: {last['seconds']:.3f} s",
            flush=True,
        )
    memory = []
    for b, t, turns in MEMORY_CASES[: 1 if arguments.quick else None]:
        for name in (*ESTIMATORS, *OTHERS):
            memory.append(peak_memory(name, b, t, turns))
            print(
                f"{name:20} {b}x{t}: arguments {memory[-1]['arguments_mib']:.0f} MiB, peak with "
                f"them {memory[-1]['peak_mib']:.0f} MiB, {memory[-1]['times_arguments']:.2f}x",
                flush=True,
            )
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "unit": "CPU seconds of one thread, median (grid: least) of the repeats",
        "repeats": arguments.repeats,
        "speed": speed,
        "growth": growth,
        "memory": memory,
        "memory_note": "greatest resident set during the call, arguments and results included; "
        "one fresh process each",
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
