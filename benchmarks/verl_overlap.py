"""What it gains to play and to learn at once: seconds of an iteration, with artificial times.

    python benchmarks/verl_overlap.py --play 20 --infer 12 --update 14

The distributed engine trains a tiny model on processes of this machine, with all that an iteration
has: episodes, weights that are sent, checkpoints. What a GPU would need for a real model is slept:
`play` seconds per rollout, whose episodes end at even intervals, `infer` for the log-probabilities
of a batch, the policy's and the reference's, `update` per update. Processes that sleep do not slow
each other: where servers share GPUs with ranks `one_step_off` gains less.
"""

import argparse
import asyncio
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any
from unittest import mock

from machine import write_verl_cpu

from vagen import progress
from vagen.config.load import load_experiment, load_infra
from vagen.engines.verl.env_vars import configure
from vagen.rollout.runner import EpisodeSpec
from vagen.rollout.types import TokenRow
from vagen.run.run import Run
from vagen.stages.build import build
from vagen.stages.warm_start import warm_start
from vagen.train import iterate

SMALL = (
    *("preset=grpo_mask", "warm_start.steps=0", "data.train_batch_size=4"),
    *("rollout_manager.n_trajectory=2", "rollout_manager.max_turns=1"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=8", "data.max_response_length=16"),
    *(f"envs.frozenlake.{split}_size={size}" for split, size in (("train", 64), ("val", 4))),
    *("envs.frozenlake.test_size=4", "trainer.agreement.enable=false", "trainer.test_freq=0"),
)
EPISODES = 8
OFF = ("rollout_manager.one_step_off=true", "actor_rollout_ref.actor.tis_imp_ratio_cap=2")
LAYOUT = ("engine=verl", "device=cpu", "threads=1", "verl.rollout=torch", "verl.agent_workers=1")
APART = ("verl.rollout_gpus=1",)
CASES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "shared, synchronous": ((), ()),
    "rollout_gpus, synchronous": ((), APART),
    "shared, one_step_off": (OFF, ()),
    "rollout_gpus, one_step_off": (OFF, APART),
}
"""Words of experiment and infra."""


def overlap(*, play: float, infer: float, update: float, iterations: int) -> dict[str, Any]:
    """Seconds of an iteration in each case.

    Args:
        play: Seconds slept per rollout.
        infer: Per batch whose log-probabilities are computed, for both networks.
        update: Per update.
        iterations: Of each training; the first one, which starts the engine, is not counted.
    """
    configure(cpu=True)
    slept = {"play": play, "infer": infer, "update": update}
    cases = {name: _case(*words, slept, iterations) for name, words in CASES.items()}
    first = next(iter(cases.values()))["iteration_s"]
    for case in cases.values():
        case["speed_up"] = round(first / case["iteration_s"], 2)
    return {
        "slept_s": slept,
        "least_s": {
            "synchronous": play + infer + update,
            "synchronous, read while played": max(play, infer) + update,
            "one_step_off": max(play, infer + update),
        },
        "cases": cases,
    }


def _case(
    words: Sequence[str], infra: Sequence[str], slept: dict[str, float], iterations: int
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        steps = f"trainer.total_training_steps={iterations}"
        run = Run.create(
            load_experiment("frozenlake-tiny", [*SMALL, *words, steps]),
            load_infra(None, [*LAYOUT, *infra, f"output_dir={folder}/runs"]),
        )
        build(run)
        warm_start(run)
        engine, player = _slowed(slept)
        with (
            mock.patch("vagen.engines.verl.engine.VerlEngine", engine),
            mock.patch("vagen.engines.verl.players.Player", player),
            run.at_work(),
        ):
            iterate(run, 0, iterations)
        ends = [
            event["time"]
            for event in progress.read_events(run.events)
            if event["event"] == "stage_finished" and event["stage"] == "update"
        ]
        metrics = run.iteration_metrics()[1:]
    periods = [after - before for before, after in itertools.pairwise(ends)]
    found = {"iteration_s": round(statistics.median(periods), 1)}
    for stage in ("rollout", "advantage", "update"):
        seconds = statistics.median(m[f"timing_s/{stage}"] for m in metrics)
        found[f"{stage}_s"] = round(seconds, 1)
    return found


def _slowed(slept: dict[str, float]) -> tuple[type, type]:
    """Engine and players that take as long as a real model would; their own work comes on top."""
    from vagen.engines.verl.engine import VerlEngine
    from vagen.engines.verl.players import Player

    class SlowEngine(VerlEngine):
        def _compute(self, call: str, rows: Sequence[TokenRow], *args: Any) -> Any:
            time.sleep(slept["infer"] / 2 * len(rows) / EPISODES)
            return super()._compute(call, rows, *args)

        def update(self, *args: Any, **kwargs: Any) -> Any:
            time.sleep(slept["update"])
            return super().update(*args, **kwargs)

    class SlowPlayer(Player):
        async def play(self, spec: EpisodeSpec, *args: Any) -> bytes:
            _, level, number = spec.trajectory_id.split("-")
            await asyncio.sleep(slept["play"] * (2 * int(level) + int(number) + 1) / EPISODES)
            return await super().play(spec, *args)

    return SlowEngine, SlowPlayer


def main() -> None:
    """Measures, prints and writes the section `overlap` of `benchmarks/results/verl-cpu.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--play", type=float, default=20)
    parser.add_argument("--infer", type=float, default=12)
    parser.add_argument("--update", type=float, default=14)
    parser.add_argument("--iterations", type=int, default=4)
    write_verl_cpu(overlap(**vars(parser.parse_args())), "overlap")


if __name__ == "__main__":
    main()
