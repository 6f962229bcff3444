"""What the machine is, its ceilings, and what attention costs in shapes that g1 does not have.

Writes `$OUT/probe.json` after every part; on a CPU everything is small.
"""

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention

OUT = Path(os.environ.get("OUT", "."))
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
VERSIONS = ("transformers", "numpy", "verl", "vllm", "ray", "tensordict", "pydantic")
COMMANDS = {
    "gpu": "nvidia-smi --query-gpu=name,memory.total,driver_version,clocks.max.sm,power.limit"
    " --format=csv,noheader",
    "memory": "grep -E 'MemTotal|MemAvailable' /proc/meminfo",
    "disk": "df -h /dev/shm /tmp /",
    "gcc": "gcc --version | head -1",
}
SHRINK = 1 if CUDA else 16
"""What lengths are divided by."""


def main() -> None:
    """Measures one part after the other."""
    known = {each.metadata["Name"].lower(): each.version for each in distributions()}
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "versions": {name: known.get(name) for name in VERSIONS},
        "machine": {name: subprocess.getoutput(text) for name, text in COMMANDS.items()},
    }
    parts: dict[str, Callable[[], Any]] = {
        "tflops": products,
        "copies_gb_per_second": copies,
        "disk_write_gb_per_second": disk,
        "attention": attention,
    }
    for name, part in parts.items():
        found[name] = part()
        (OUT / "probe.json").write_text(json.dumps(found, indent=2))
    print(json.dumps(found, indent=2))


def seconds(work: Callable[[], Any], repeats: int = 5) -> float:
    """Mean time of a call, after two that warm up."""
    for number in range(2 + repeats):
        if number == 2:
            synchronise()
            start = time.perf_counter()
        work()
    synchronise()
    return (time.perf_counter() - start) / repeats


def synchronise() -> None:
    """Waits for the GPU."""
    if CUDA:
        torch.cuda.synchronize()


def products() -> dict[str, float]:
    """Matrix products in bfloat16, float32 and TF32."""
    side, found = 8192 // SHRINK, {}
    for name, precision in (("bfloat16", "highest"), ("float32", "highest"), ("tf32", "high")):
        torch.set_float32_matmul_precision(precision)
        dtype = torch.bfloat16 if name == "bfloat16" else torch.float32
        a, b = (torch.randn(side, side, device=DEVICE, dtype=dtype) for _ in range(2))
        found[name] = 2 * side**3 / seconds(lambda a=a, b=b: a @ b) / 1e12
    return found


def copies() -> dict[str, float]:
    """Within the GPU (read and written), and from it to pageable and pinned memory."""
    size = (1 << 30) // SHRINK**2
    source = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    targets = {"device": torch.empty_like(source), "pageable": torch.empty(size, dtype=torch.uint8)}
    if CUDA:
        targets["pinned"] = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return {
        name: (2 if name == "device" else 1) * size / seconds(lambda t=t: t.copy_(source)) / 1e9
        for name, t in targets.items()
    }


def disk() -> float:
    """A file that is written and is on the disk."""
    data = os.urandom(1 << 20) * (2048 // SHRINK)
    path = Path(os.environ.get("BASE", "/tmp")) / "probe.bin"
    start = time.perf_counter()
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    found = len(data) / (time.perf_counter() - start) / 1e9
    path.unlink()
    return found


def attention() -> dict[str, Any]:
    """The kernel that torch picks, and its milliseconds, with the 3 B model's heads."""
    rows, few, keys = (128, 32, 2048) if CUDA else (1, 1, 128)

    def masked(rows: int, queries: int) -> torch.Tensor:
        return torch.zeros(rows, 1, queries, keys, device=DEVICE, dtype=torch.bfloat16)

    cases = {  # rows, heads, key heads, queries, keys, size of a head, mask, gradients
        "decode": (rows, 2, 2, 8, keys, 128, masked(rows, 8), False),
        "prefill": (few, 2, 2, keys, keys, 128, masked(few, keys), False),
        "vision": (rows // 2 or 1, 16, 16, 324, 324, 80, None, True),
    }
    return {name: attend(*case) for name, case in cases.items()}


def attend(
    rows: int,
    heads: int,
    key_heads: int,
    queries: int,
    keys: int,
    size: int,
    mask: torch.Tensor | None,
    gradients: bool,
) -> dict[str, Any]:
    """One shape in bfloat16, forward, and backward if gradients are asked for."""
    shapes = ((heads, queries), (key_heads, keys), (key_heads, keys))
    query, key, value = (
        torch.randn(rows, *shape, size, device=DEVICE, dtype=torch.bfloat16).requires_grad_(
            gradients
        )
        for shape in shapes
    )

    def compute() -> None:
        found = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        if gradients:
            found.sum().backward()

    picked = SDPBackend(torch._fused_sdp_choice(query, key, value, mask, 0.0, False))
    return {"picked": picked.name, "milliseconds": 1000 * seconds(compute)}


if __name__ == "__main__":
    main()
