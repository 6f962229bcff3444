"""What it gains to play and to learn at once: seconds of an iteration, with artificial times.

    python benchmarks/verl_overlap.py --play 20 --infer 12 --update 14
    python benchmarks/verl_overlap.py --partial --play 24 --infer 4 --update 6 --iterations 6

The distributed engine trains a tiny model on processes of this machine, with all that an iteration
has: episodes, weights that are sent, checkpoints. What a GPU would need for a real model is slept:
`play` seconds per rollout, whose episodes end at even intervals, `infer` for the log-probabilities
of a batch, the policy's and the reference's, `update` per update. Processes that sleep do not slow
each other: where servers share GPUs with ranks `one_step_off` gains less.

With `--partial` every fourth level takes `play` seconds, in turns of equal length, and the others a
quarter of it; no more episodes are in play at a time than without partial rollouts. An iteration is
then the mean of a whole training, all of which learn from the same number of episodes.
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

from vagen import progress, steps
from vagen.engines.verl.env_vars import configure
from vagen.experiment.load import load_experiment, load_infra
from vagen.rollout.types import TokenRow
from vagen.run.run import Run
from vagen.stages.build import build
from vagen.stages.warm_start import warm_start
from vagen.stages.weights import engine_at
from vagen.train import iterate

SMALL = (
    *("preset=grpo_mask", "warm_start.steps=0", "data.train_batch_size=4"),
    *("rollout_manager.n_trajectory=2", "rollout_manager.max_turns=1"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=8", "data.max_response_length=16"),
    *(f"envs.frozenlake.{split}_size={size}" for split, size in (("train", 64), ("val", 4))),
    *("envs.frozenlake.test_size=4", "trainer.agreement.enable=false", "trainer.test_freq=0"),
)
EPISODES, TURNS = 8, 6
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
OVER = (*OFF[1:], "rollout_manager.over_sampling_batch_size=8")
PARTIAL: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "synchronous": ((), APART),
    "partial": (OVER, APART),
    "one_step_off": (OFF, APART),
    "partial, one_step_off": ((*OVER, OFF[0]), APART),
}
LONG = (f"rollout_manager.max_turns={TURNS}", "data.max_trajectory_length=1024")
LONG += (f"actor_rollout_ref.rollout.max_concurrency={EPISODES}",)


def overlap(
    *, play: float, infer: float, update: float, iterations: int, partial: bool
) -> dict[str, Any]:
    """Seconds of an iteration in each case.

    Args:
        play: Seconds slept per rollout.
        infer: Per batch whose log-probabilities are computed, for both networks.
        update: Per update.
        iterations: Of each training; the first one is not counted, unless it is `partial`.
        partial: Whether episodes differ in length, with and without partial rollouts.
    """
    configure(cpu=True)
    slept = {"play": play, "infer": infer, "update": update}
    chosen = PARTIAL if partial else CASES
    cases = {
        name: _case(words, infra, slept, iterations, partial)
        for name, (words, infra) in chosen.items()
    }
    first = next(iter(cases.values()))["iteration_s"]
    for case in cases.values():
        case["speed_up"] = round(first / case["iteration_s"], 2)
    return {"slept_s": slept, "least_s": _least(**slept, partial=partial), "cases": cases}


def _least(*, play: float, infer: float, update: float, partial: bool) -> dict[str, float]:
    """What nothing but the sleep would take."""
    if not partial:
        return {
            "synchronous": play + infer + update,
            "synchronous, read while played": max(play, infer) + update,
            "one_step_off": max(play, infer + update),
        }
    filled = play * (1 + 3 * 0.25) / 4  # with an episode in every place, all the time
    return {
        "synchronous": max(play, infer) + update,
        "partial": max(filled, infer) + update,
        "one_step_off": max(play, infer + update),
        "partial, one_step_off": max(filled, infer + update),
    }


def _case(
    words: Sequence[str],
    infra: Sequence[str],
    slept: dict[str, float],
    iterations: int,
    partial: bool,
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        length = f"trainer.total_training_steps={iterations}"
        run = Run.create(
            load_experiment(
                "frozenlake-tiny", [*SMALL, *(LONG if partial else ()), *words, length]
            ),
            load_infra(None, [*LAYOUT, *infra, f"output_dir={folder}/runs"]),
        )
        build(run)
        warm_start(run)
        engine, player = _slowed(slept, partial)
        with (
            mock.patch("vagen.engines.verl.engine.VerlEngine", engine),
            mock.patch("vagen.engines.verl.rollout_workers.RolloutWorker", player),
            run.session(),
        ):
            engine_at(run, steps.WARM_START)
            begun = time.time()
            iterate(run, 0, iterations)
        ends = [
            event["time"]
            for event in progress.read_events(run.events)
            if event["event"] == "stage_finished" and event["stage"] == "update"
        ]
        metrics = run.iteration_metrics()[1:]
    periods = [after - before for before, after in itertools.pairwise(ends)]
    period = (ends[-1] - begun) / iterations if partial else statistics.median(periods)
    found = {"iteration_s": round(period, 1)}
    for name in ("staleness", "carried") if "rollout/carried" in metrics[0] else ():
        found[name] = round(statistics.mean(m[f"rollout/{name}"] for m in metrics), 2)
    for stage in ("rollout", "advantage", "update"):
        seconds = statistics.median(m[f"timing_s/{stage}"] for m in metrics)
        found[f"{stage}_s"] = round(seconds, 1)
    return found


def _slowed(slept: dict[str, float], partial: bool) -> tuple[type, type]:
    """Engine and players that take as long as a real model would; their own work comes on top."""
    from vagen.engines.verl.engine import VerlEngine
    from vagen.engines.verl.rollout_workers import RolloutWorker

    class SlowEngine(VerlEngine):
        def _compute(self, call: str, rows: Sequence[TokenRow], *args: Any) -> Any:
            time.sleep(slept["infer"] / 2 * len(rows) / EPISODES)
            return super()._compute(call, rows, *args)

        def update(self, *args: Any, **kwargs: Any) -> Any:
            time.sleep(slept["update"])
            return super().update(*args, **kwargs)

    class SlowPlayer(RolloutWorker):
        def __init__(self, *args: Any):
            super().__init__(*args)
            answer = self.client.generate

            async def slowly(request_id: str, **request: Any) -> Any:
                _, level, number = map(int, request_id.partition("/")[0].split("-"))
                share = (2 * level + number + 1) / EPISODES
                if partial:
                    share = (0.25 if level % 4 else 1.0) / TURNS
                await asyncio.sleep(slept["play"] * share)
                return await answer(request_id, **request)

            self.client.generate = slowly

    return SlowEngine, SlowPlayer


def main() -> None:
    """Measures, prints and writes a section of `benchmarks/results/verl-cpu.json`: `overlap`, or
    `partial_rollouts`.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--play", type=float, default=20)
    parser.add_argument("--infer", type=float, default=12)
    parser.add_argument("--update", type=float, default=14)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--partial", action="store_true")
    options = parser.parse_args()
    write_verl_cpu(overlap(**vars(options)), "partial_rollouts" if options.partial else "overlap")


if __name__ == "__main__":
    main()
