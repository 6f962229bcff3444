"""Packs what the GPU checks need on a machine without network (`make pack-gpu`).

    python -m benchmarks.gpu.pack.pack [key=value ...]

The options are those of g10's experiment. Makes two folders that travel with a checkout, one in
each call:

- `.gpu/verl`: verl, Ray, transformers and what they import; what g10 needs of a CPU.
- `.gpu/vllm`: vLLM with the kernels of Hopper GPUs alone, and what it imports.

Packages come from the index, in the versions of `constraints/gpu.txt`; `build/pack-gpu` keeps them.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.common import ROOT
from benchmarks.gpu.learning import EXPERIMENT, prepare
from benchmarks.gpu.pack.fatprune import prune
from vagen.experiment.load import load_experiment

HERE = Path(__file__).parent
MIB = 1 << 20
LIMIT = 64 * MIB
"""Most bytes that travel in one call, with the checkout."""
PYTHON = "3.12"
GLIBC = (39, 36, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)
"""Minor versions in names of wheels; pip takes those that are listed."""
FROM_SOURCE = "antlr4-python3-runtime"
"""In no index as a wheel; it is pure Python."""
RAY = ("ray/_raylet.so", "ray/core/src/ray/gcs/gcs_server", "ray/core/src/ray/raylet/raylet")
"""Programs with symbols, which are cut off."""
UNUSED = {
    "verl": [f"ray/{part}" for part in ("jars", "cpp", "rllib", "llm", "serve", "train", "tune")]
    + ["ray/dashboard/client"],
    "vllm": [
        "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so",  # FlashAttention 3 is Hopper's
        "vllm/vllm-rs",
        "vllm/_rust_tool_parser.abi3.so",
        "vllm/third_party/deep_gemm",
        "vllm/third_party/fmha_sm100",
        "mistral_common/data/*.json",
        "pycountry/locales",
        "**/*.hpp",
        "**/*.cuh",
    ],
}
"""Patterns of what the checks do without."""


def main() -> None:
    """Packs both parts and prints their sizes."""
    target = ROOT / ".gpu"
    shutil.rmtree(target, ignore_errors=True)
    for part in UNUSED:
        pack(part, ROOT / "build" / "pack-gpu" / part, target / part)
    prepare(load_experiment(EXPERIMENT, sys.argv[1:]), target / "verl")
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT)
    (target / "verl" / "commit").write_bytes(commit)
    for part, size in check_sizes(ROOT, [target / part for part in UNUSED]).items():
        print(f"{part}: {size / MIB:.1f} MiB with the checkout, of {LIMIT // MIB}")


def pack(part: str, work: Path, target: Path) -> None:
    """Writes `site.tar.xz`, a folder for the other machine's `PYTHONPATH`, into the target."""
    site = work / "site"
    shutil.rmtree(site, ignore_errors=True)
    for wheel in sorted(download(part, work / "wheels").glob("*.whl")):
        shutil.unpack_archive(wheel, site, "zip")
    lighten(part, site)
    target.mkdir(parents=True)
    tar = ["tar", "--create", "--xz", f"--file={target / 'site.tar.xz'}", f"--directory={site}"]
    subprocess.run([*tar, "."], check=True, env=os.environ | {"XZ_OPT": "-6 --threads=0"})


def download(part: str, folder: Path) -> Path:
    """The wheels of a part, for the other machine's Python, in a folder."""
    pip = [sys.executable, "-m", "pip"]
    common = ["--quiet", "--no-deps", f"--constraint={ROOT / 'constraints' / 'gpu.txt'}"]
    names = (HERE / f"packages-{part}.txt").read_text().split()
    wanted = ["--only-binary=:all:", f"--python-version={PYTHON}", "--implementation=cp"]
    systems = [*(f"_2_{minor}" for minor in GLIBC), "2014", "2010", "1"]
    wanted += [f"--platform=manylinux{system}_x86_64" for system in systems]
    get = [*pip, "download", *common, *wanted, f"--dest={folder}"]
    subprocess.run([*get, *(name for name in names if name != FROM_SOURCE)], check=True)
    if FROM_SOURCE in names:
        build = [*pip, "wheel", *common, f"--wheel-dir={folder}", FROM_SOURCE]
        subprocess.run(build, check=True)
    return folder


def lighten(part: str, site: Path) -> None:
    """Removes what the checks do without: tests, unused parts, symbols, kernels of other GPUs."""
    for pattern in [*UNUSED[part], "**/tests", "**/test"]:
        for path in list(site.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    if part == "verl":
        for program in RAY:
            subprocess.run(["strip", "--strip-unneeded", site / program], check=True)
            (site / program).chmod(0o755)
    else:
        for library in [*site.glob("vllm/*.so"), *site.glob("vllm/vllm_flash_attn/*.so")]:
            print(f"{library.name}: {prune(library) / MIB:.0f} MiB for other GPUs")
        shutil.copy(HERE / "xgrammar.py", site)


def check_sizes(checkout: Path, parts: Sequence[Path], limit: int = LIMIT) -> dict[str, int]:
    """Bytes that travel with each part: its own and the checkout's.

    Args:
        checkout: A git repository; what it ignores does not travel.
        parts: Folders, each of which travels in a call of its own.
        limit: Most bytes of a call.

    Raises:
        ValueError: A part is too large; says by how much.
    """
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(listing, cwd=checkout, text=True).split("\0")
    tree = sum(path.stat().st_size for name in names if (path := checkout / name).is_file())
    sizes = {}
    for part in parts:
        own = sum(path.stat().st_size for path in part.rglob("*") if path.is_file())
        sizes[part.name] = own + tree
        if own + tree > limit:
            raise ValueError(
                f"{part} ({own / MIB:.1f} MiB) and the checkout ({tree / MIB:.1f} MiB) are "
                f"{(own + tree - limit) / MIB:.1f} MiB over the {limit / MIB:.1f} MiB of a call: "
                "name more in UNUSED of benchmarks/gpu/pack/pack.py, or move packages from "
                "packages-verl.txt to packages-vllm.txt or back"
            )
    return sizes


if __name__ == "__main__":
    main()
