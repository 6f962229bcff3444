"""What training costs beside its arithmetic, on this machine's CPU, by section.

    python benchmarks/verl_cpu.py checkpoint --engine verl --other ../vagen-of-before

A section writes its part of `benchmarks/results/verl-cpu.json` and leaves the others as they are;
`data_movement` is written by `benchmarks/data_movement.py`.

`checkpoint`: a Qwen3 of 72 M parameters and a critic as large, after one update, saved several
times: seconds for which the training waits, seconds until it is committed, bytes, seconds of
hashing. With `--other` a second checkout does the same in turn.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machine import write_verl_cpu

ROOT = Path(__file__).parent.parent
SIZES = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 8,
    "num_attention_heads": 12,
    "num_key_value_heads": 6,
    "head_dim": 64,
    "layer_types": ["full_attention"] * 8,
}
SMALL = (
    *("envs.frozenlake.env_config.render_mode=text", "envs.frozenlake.train_size=8"),
    *("envs.frozenlake.val_size=2", "envs.frozenlake.test_size=2", "warm_start.steps=0"),
    *("data.train_batch_size=2", "rollout_manager.max_turns=1", "data.max_response_length=8"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=2", "critic.ppo_mini_batch_size=2"),
    "algorithm.kl_ctrl.kl_coef=0",
)
ENGINES = {
    "local": (),
    "verl": (
        *("engine=verl", "verl.rollout=torch", "verl.n_gpus_per_node=2", "verl.agent_workers=1"),
        "verl.param_offload=false",
    ),
}


def write_model(directory: Path) -> None:
    """A text model of the size that is measured, with random weights and a tiny tokenizer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from vagen.models.tiny import build_tiny_model

    build_tiny_model("tiny:text", directory, corpus=["a b c up down left right"], tags=[], seed=0)
    config = Qwen3Config.from_pretrained(directory, **SIZES)
    Qwen3ForCausalLM(config).save_pretrained(directory)


def measure_checkpoint(engine: str, saves: int, folder: Path) -> dict[str, Any]:
    """Saves an engine that has learnt once, with the code of the checkout that is imported."""
    if engine == "verl":
        from vagen.engines.verl.env_vars import configure

        configure(cpu=True)
    from vagen.engines.learn import learn
    from vagen.experiment.load import load_experiment, load_infra
    from vagen.rollout.batch import TrajectoryBatch
    from vagen.run.run import Run
    from vagen.stages.advantage import advantage
    from vagen.stages.build import build
    from vagen.stages.judge import judge
    from vagen.stages.rollout import rollout
    from vagen.stages.warm_start import warm_start

    write_model(folder / "model")
    experiment = load_experiment(
        ROOT / "experiments/frozenlake-tiny.yaml",
        [*SMALL, f"actor_rollout_ref.model.path={folder / 'model'}"],
    )
    infra = load_infra(None, [f"output_dir={folder}", "device=cpu", "threads=1", *ENGINES[engine]])
    run = Run.create(experiment, infra, "run")
    with run.session():
        for stage in (build, warm_start):
            stage(run)
        for stage in (rollout, judge, advantage):
            stage(run, 0)
        assert run.engine is not None
        batch = TrajectoryBatch.load(run.step(0, "advantage"))
        learn(run.experiment, run.engine, batch.trajectories, batch.images, 0)
        timings = [save(run.engine, run.checkpoint(number)) for number in range(saves)]
    checkpoint = run.checkpoint(0)
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    return {
        "bytes": sum(path.stat().st_size for path in files),
        "seconds_blocked": [round(blocked, 2) for blocked, _ in timings],
        "seconds_until_committed": [round(whole, 2) for _, whole in timings],
        "seconds_hashing": [round(seconds_of(lambda: scan(checkpoint)), 2) for _ in range(saves)],
    }


def save(engine: Any, folder: Path) -> tuple[float, float]:
    """Seconds for which a save blocks, and until it is committed."""
    from vagen.storage import commit_directory

    begun = time.perf_counter()
    if hasattr(engine, "begin_save"):
        known: dict[str, Any] = {}
        with commit_directory(folder, kind="checkpoint", known=known) as partial:
            finish = engine.begin_save(partial)
            blocked = time.perf_counter() - begun
            known |= finish()
        return blocked, time.perf_counter() - begun
    with commit_directory(folder, kind="checkpoint") as partial:
        engine.save(partial)
    whole = time.perf_counter() - begun
    return whole, whole


def scan(directory: Path) -> None:
    """Hashes all files of a checkpoint as a commit does that knows no digest."""
    from vagen.storage.manifest import scan_files

    scan_files(directory)


def seconds_of(work: Callable[[], None]) -> float:
    """How long it takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def checkpoint(options: argparse.Namespace) -> dict[str, Any]:
    """The section: this checkout, and another if one is given, each in a process of its own."""
    trees = {"after": ROOT} | ({"before": options.other.absolute()} if options.other else {})
    result: dict[str, Any] = {"engine": options.engine, "saves": options.saves}
    for name, tree in trees.items():
        with tempfile.TemporaryDirectory() as folder:
            command = [*(sys.executable, __file__, "--measure", folder, "checkpoint")]
            command += ["--engine", options.engine, "--saves", str(options.saves)]
            environment = os.environ | {"PYTHONPATH": str(tree)}
            subprocess.run(command, check=True, env=environment, stdout=sys.stderr)
            result[name] = json.loads((Path(folder) / "measured.json").read_text())
    for name in result.keys() & trees.keys():
        found = result[name]
        result[name] |= {
            f"median_{key}": statistics.median(value)
            for key, value in found.items()
            if isinstance(value, list)
        }
    return result


SECTIONS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {"checkpoint": checkpoint}


def main() -> None:
    """Measures the sections that are named, prints and writes them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS], default=[*SECTIONS])
    parser.add_argument("--engine", choices=[*ENGINES], default="verl")
    parser.add_argument("--saves", type=int, default=3)
    parser.add_argument("--other", type=Path, help="a second checkout, measured as well")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        found = measure_checkpoint(options.engine, options.saves, options.measure)
        (options.measure / "measured.json").write_text(json.dumps(found))
        return
    for section in options.sections:
        write_verl_cpu(SECTIONS[section](options), section, options.engine)


if __name__ == "__main__":
    main()
