"""What the GPU checks share: a setup, episodes of the right shape, clocks, results."""

import datetime
import importlib.metadata
import json
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.gpu.model import MODELS, build
from benchmarks.machine import describe_machine
from vagen.config import ExperimentConfig, InfraConfig
from vagen.engines.objectives import CRITIC_MASK
from vagen.experiment.load import load_experiment, load_infra
from vagen.learning.agreement import measure_agreement
from vagen.models.processor import Processor, load_processor
from vagen.rollout.episodes import training_specs
from vagen.rollout.levels import draw_levels
from vagen.rollout.play import play
from vagen.rollout.types import Generation, Sampling, TokenRow, Trajectory

SIZES = ("trajectories", "turns", "response", "repeats")
"""Of a `Setup`; each check has its own."""
VERSIONS = ("torch", "vllm", "verl", "transformers", "ray")
ROOT = Path(__file__).parent.parent.parent
GIB = 1 << 30
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Dense bfloat16 operations per second by a part of the device's name (SXM modules)."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is measured, on what, how often."""

    model: str
    """Of `MODELS`."""
    device: str
    """`cuda` or `cpu`."""
    gpus: int
    trajectories: int
    turns: int
    response: int
    """Tokens of an answer."""
    repeats: int
    """Measurements after one that warms up; their median counts."""
    rollouts: tuple[str, ...]
    """Of `infra.verl.rollout`, and `local` for the local engine."""
    scratch: Path
    """Folder for models and checkpoints."""
    options: tuple[str, ...] = ()
    """Dotted options of the experiment; those that begin with `infra.` are the infra's."""

    @property
    def dtype(self) -> str:
        """What is computed in; float32 without a GPU."""
        return "bfloat16" if self.device == "cuda" else "float32"

    def experiment(self, *options: str) -> ExperimentConfig:
        """The shipped experiment of the model, at this setup's sizes."""
        row = 1024 + self.turns * (self.response + 256)
        sizes = (
            f"actor_rollout_ref.model.path={self.model_path()}",
            f"data.train_batch_size={self.trajectories}",
            f"data.max_response_length={self.response}",
            f"data.max_trajectory_length={row}",
            f"rollout_manager.max_turns={self.turns}",
            f"actor_rollout_ref.rollout.max_concurrency={self.trajectories}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={min(32, self.trajectories)}",
            "judge.use_state_reward=false",
        )
        own = [option for option in self.options if not option.startswith("infra.")]
        return load_experiment(MODELS[self.model].experiment, [*sizes, *own, *options])

    def infra(self, *options: str) -> InfraConfig:
        """The distributed engine on this machine."""
        players = max(1, min(8, (os.cpu_count() or 2) // 2))
        layout = [f"verl.n_gpus_per_node={self.gpus}", f"verl.agent_workers={players}"]
        own = [o.removeprefix("infra.") for o in self.options if o.startswith("infra.")]
        base = ["engine=verl", f"device={self.device}", f"dtype={self.dtype}"]
        if self.device == "cpu":
            base.append("threads=1")
        return load_infra(None, [*base, *layout, *own, *options])

    def model_path(self) -> Path:
        """The model's directory, built if it is not there."""
        folder = self.scratch / "models" / self.model
        if not (folder / "preprocessor_config.json").exists():
            build(self.model, folder, load_experiment(MODELS[self.model].experiment), self.device)
        return folder


class Scribe:
    """A policy that writes words at random: episodes of the right shape without a network."""

    def __init__(self, processor: Processor, length: int):
        banned = {*processor.banned_ids, *processor.tokenizer.all_special_ids}
        self.words = np.array([i for i in range(len(processor.tokenizer)) if i not in banned])
        self.eos, self.length = processor.eos_id, length

    async def generate(self, *, sampling: Sampling, **_: Any) -> Generation:
        """An answer of so many tokens or down to half of them, the end of the turn included."""
        draws = np.random.Generator(np.random.Philox(key=sampling.seed))
        length = draws.integers(self.length // 2, self.length, endpoint=True)
        ids = [*draws.choice(self.words, length - 1).tolist(), self.eos]
        return Generation(ids, [0.0] * len(ids), "stop")

    def release(self, request_id: str) -> None:
        """Nothing is kept."""


def specs_of(config: ExperimentConfig) -> list[Any]:
    """Episodes of an iteration."""
    levels = draw_levels(config, {"train": None}, at_most=config.data.train_batch_size)
    return training_specs(config, levels, 0)


def written_episodes(setup: Setup, config: ExperimentConfig) -> tuple[list[Trajectory], Any]:
    """Episodes with frames of the real environment and answers of a `Scribe`."""
    processor = load_processor(config.actor_rollout_ref.model.path)
    return play(
        config,
        specs_of(config),
        policy=Scribe(processor, setup.response),
        processor=processor,
        sampling=config.actor_rollout_ref.rollout,
        split="train",
    )


def rows_of(trajectories: Sequence[Trajectory]) -> list[TokenRow]:
    """Rows that hold a sampled token."""
    return [row for t in trajectories for row in t.rows if row.loss_mask.any()]


def add_columns(
    rows: Sequence[TokenRow], logprobs: Sequence[Any], values: Sequence[Any] | None
) -> None:
    """All that an update reads; advantages and returns are drawn."""
    rng = np.random.default_rng(0)
    for i, row in enumerate(rows):
        length, mask = len(row.input_ids), row.loss_mask.astype(np.float32)
        drawn = rng.normal(size=(2, length)).astype(np.float32)
        before = np.zeros(length, np.float32) if values is None else values[i]
        row.columns |= {
            "old_logprobs": logprobs[i],
            "ref_logprobs": logprobs[i],
            "advantages": drawn[0] * mask,
            "values": before,
            "returns": before + drawn[1],
            CRITIC_MASK: mask,
        }


def used_bytes(device: str) -> int:
    """Memory in use: on the fullest GPU, or by this process and its children."""
    import torch

    if device == "cuda":
        free = [torch.cuda.mem_get_info(i) for i in range(torch.cuda.device_count())]
        return max(total - left for left, total in free)
    own = psutil.Process()
    found = 0
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            found += process.memory_info().rss
    return found


class Meter:
    """Seconds of phases, and the most memory in use meanwhile."""

    def __init__(self, device: str):
        self.device = device
        self.seconds: dict[str, list[float]] = {}
        self.used: dict[str, int] = {}
        self.allocated: dict[str, int] = {}
        """By torch in this process; on a CPU nothing is known of it."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures the block once more."""
        import torch

        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(name, over), daemon=True)
        if self.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        watch.start()
        started = time.perf_counter()
        try:
            yield
            if self.device == "cuda":
                torch.cuda.synchronize()
                peak = max(self.allocated.get(name, 0), torch.cuda.max_memory_allocated())
                self.allocated[name] = peak
        finally:
            seconds = time.perf_counter() - started
            over.set()
            watch.join()
        self.seconds.setdefault(name, []).append(seconds)

    def repeat(self, name: str, repeats: int, work: Callable[[], Any]) -> Any:
        """Once to warm up, then so many times; gives what came of the last."""
        for i in range(repeats + 1):
            with self.phase(name) if i else nullcontext():
                found = work()
        return found

    def median(self, name: str) -> float:
        """Seconds of a phase."""
        return statistics.median(self.seconds[name])

    def report(self) -> dict[str, dict[str, float]]:
        """Median seconds and GiB of every phase."""
        found = {}
        for name in self.seconds:
            found[name] = {
                "seconds": round(self.median(name), 4),
                "used_gib": round(self.used[name] / GIB, 3),
            }
            if self.allocated.get(name):
                found[name]["allocated_gib"] = round(self.allocated[name] / GIB, 3)
        return found

    def _watch(self, name: str, over: threading.Event) -> None:
        self.used[name] = max(self.used.get(name, 0), used_bytes(self.device))
        while not over.wait(0.02):
            self.used[name] = max(self.used[name], used_bytes(self.device))


def difference(found: Sequence[Any], reference: Sequence[Any], rows: Sequence[TokenRow]) -> Any:
    """How two computations of one number per sampled token differ, beside its own deviation."""
    a, b = (
        np.concatenate([x[row.loss_mask] for x, row in zip(xs, rows, strict=True)])
        for xs in (found, reference)
    )
    apart = np.abs(a - b)
    return {
        "mean": float(apart.mean()),
        "p99": float(np.quantile(apart, 0.99)),
        "max": float(apart.max()),
        "correlation": float(np.corrcoef(a, b)[0, 1]),
        "deviation": float(b.std()),
    }


def agreement(trainer: Sequence[Any], rows: Sequence[TokenRow]) -> dict[str, float]:
    """`vagen.learning.agreement` of the trainer's log-probabilities with the rows' own."""
    found = [x[row.loss_mask] for x, row in zip(trainer, rows, strict=True)]
    own = [row.rollout_logprobs[row.loss_mask] for row in rows]
    return measure_agreement(np.concatenate(found), np.concatenate(own))


def write(check: str, setup: Setup, output: Path, content: dict[str, Any]) -> Path:
    """Writes a check's result beside those of the other benchmarks."""
    import torch

    known = {d.metadata["Name"].lower(): d.version for d in importlib.metadata.distributions()}
    commit = os.environ.get("VAGEN_COMMIT", "")
    if not commit and (ROOT / ".git").exists():
        asked = ["git", "rev-parse", "HEAD"]
        commit = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    sizes = asdict(setup)
    report = {
        "check": check,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if setup.device == "cuda" else "cpu",
        "versions": {name: known.get(name) for name in VERSIONS} | {"cuda": torch.version.cuda},
        "commit": commit,
        "machine": describe_machine(),
        "dtype": setup.dtype,
        **{name: sizes[name] for name in ("model", "gpus", *SIZES, "options")},
        **content,
    }
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"gpu-{check}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    return path
