"""Checks of the engines on GPUs, one command each (`make bench-gpu CHECK=one`); see README.md.

    python -m benchmarks.gpu one [--model qwen25vl-1b] [--device cuda] [key=value ...]

Writes `benchmarks/results/gpu-<check>.json`; exits with 1 if the check did not pass.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu.common import ROOT, SIZES, Setup, write
from benchmarks.gpu.model import MODELS
from vagen.engines.verl.env_vars import configure, is_installed


class Check(NamedTuple):
    """A check: where it is, and its sizes on a GPU."""

    function: str
    """`module:function` of this package; takes a `Setup`, gives a JSON-able dict with `passed`, or
    several, of which each replaces the one before."""
    trajectories: int
    turns: int = 5
    response: int = 128
    repeats: int = 3


CHECKS = {
    "one": Check("one:check", 128, repeats=1),
    "g1": Check("attention:check", 32),
    "g2": Check("numerics:check", 8, 3, 64),
    "g7": Check("stock:check", 64, repeats=2),
    "g10": Check("learning:check", 64),
}


def main() -> None:
    """Runs one check, or each in a process of its own."""
    arguments = _arguments()
    if arguments.check == "all":
        rest = [argument for argument in sys.argv[1:] if argument != "all"]
        command = [sys.executable, "-m", "benchmarks.gpu"]
        codes = {name: subprocess.run([*command, name, *rest]).returncode for name in CHECKS}
        print({name: "passed" if code == 0 else "failed" for name, code in codes.items()})
        sys.exit(any(codes.values()))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    check = CHECKS[arguments.check]
    sizes = {name: getattr(arguments, name) or getattr(check, name) for name in SIZES}
    setup = Setup(
        model=arguments.model,
        device=device,
        gpus=arguments.gpus,
        rollouts=tuple(arguments.rollouts.split(",")),
        scratch=arguments.scratch.absolute(),
        options=tuple(arguments.options),
        **sizes,
    )
    if is_installed():
        configure(cpu=device == "cpu")  # before transformers is imported
    module, _, function = check.function.partition(":")
    result = getattr(importlib.import_module(f"benchmarks.gpu.{module}"), function)(setup)
    for found in [result] if isinstance(result, dict) else result:
        path = write(arguments.check, setup, arguments.output, found)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    print(json.dumps(found, indent=2))
    print(f"{arguments.check}: {'passed' if found['passed'] else 'NOT PASSED'}; {path}")
    sys.exit(not found["passed"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check", choices=[*CHECKS, "all"])
    parser.add_argument("options", nargs="*", help="dotted options; `infra.` begins the infra's")
    parser.add_argument("--model", choices=list(MODELS), default="qwen25vl-1b")
    parser.add_argument("--device", choices=["cuda", "cpu"])
    parser.add_argument("--gpus", type=int, default=1)
    for name in SIZES:
        parser.add_argument(f"--{name}", type=int, help="of the check, if not given")
    parser.add_argument(
        "--rollouts",
        default="local,torch,vllm",
        help="of `one`, which takes the last that is installed",
    )
    parser.add_argument("--scratch", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    return parser.parse_intermixed_args()


if __name__ == "__main__":
    main()
