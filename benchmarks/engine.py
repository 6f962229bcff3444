"""Time of one training iteration on the local engine, phase by phase.

The episodes, weights and optimizer states of every repetition are the same: an iteration of the
experiment after its warm start. The figures of two versions of the code are compared on one run's
folder (`--run`), which keeps the warm start.

    python benchmarks/engine.py [--repeats 3] [--run FOLDER] [key=value ...]
"""

import argparse
import copy
import datetime
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
import transformers
from machine import describe_machine, write_result

from vagen.engines.columns import add_columns
from vagen.engines.local.engine import LocalEngine
from vagen.engines.local.helpers import possible_helpers
from vagen.experiment.load import load_experiment, load_infra
from vagen.rollout.episodes import training_specs
from vagen.rollout.types import Trajectory
from vagen.run.run import Run
from vagen.service.pool import core_count
from vagen.stages.build import build, load_levels
from vagen.stages.warm_start import warm_start

ROOT = Path(__file__).parent.parent
EXPERIMENT = "experiments/frozenlake-tiny.yaml"


class Clock:
    """Wall and processor seconds of named phases."""

    def __init__(self) -> None:
        self.processes = [psutil.Process()]
        self.wall: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds one measurement."""
        started, spent = time.perf_counter(), self._spent()
        yield
        self.wall.setdefault(name, []).append(time.perf_counter() - started)
        self.cpu.setdefault(name, []).append(self._spent() - spent)

    def _spent(self) -> float:
        times = [process.cpu_times() for process in self.processes]
        return sum(time.user + time.system for time in times)


def prepare(folder: Path, experiment: str, overrides: list[str], cores: int) -> Run:
    """The run in `folder`, made and warmed up if it is not there."""
    if (folder / "config").exists():
        return Run.open(folder)
    config = load_experiment(str(ROOT / experiment), overrides)
    infra = load_infra(
        str(ROOT / "experiments/infra/laptop.yaml"),
        [f"output_dir={folder.parent}", "device=cpu", f"threads={cores}"],
    )
    run = Run.create(config, infra, name=folder.name)
    build(run)
    warm_start(run)
    return run


def iteration(run: Run, engine: LocalEngine, clock: Clock) -> list[Trajectory]:
    """The phases of an iteration, from the engine's present weights."""
    config = run.experiment
    specs = training_specs(config, load_levels(run), 0)
    with clock.phase("rollout"):
        trajectories, images = engine.play(
            specs, sampling=config.actor_rollout_ref.rollout, split="train"
        )
    rows = [row for trajectory in trajectories for row in trajectory.rows]
    with clock.phase("logprobs"):
        engine.logprobs(rows, images)
    if engine.critic is not None:
        with clock.phase("values"):
            engine.values(rows, images)
    for trajectory in trajectories:  # what the judge would say changes no time
        for turn in trajectory.turns:
            turn.rewards = replace(turn.rewards, judge_observation=0.0, judge_prediction=0.0)
    with clock.phase("advantage"):
        add_columns(config, engine, trajectories, images)
    rows = [row for row in rows if row.loss_mask.any()]
    with clock.phase("update"):
        engine.update(rows, images, seed=0)
    return trajectories


def states(engine: LocalEngine) -> list[Any]:
    """The modules and optimizers whose state an update changes."""
    learners = engine.learners.values()
    parts = [part for learner in learners for part in (learner.module, learner.optimizer)]
    return [part for part in parts if part is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overrides", nargs="*", help="dotted options of the experiment")
    parser.add_argument("--experiment", default=EXPERIMENT)
    parser.add_argument("--run", type=Path, help="keeps the warm start here, or takes it from here")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--processes", type=int, default=possible_helpers(core_count()) + 1)
    default = Path(__file__).parent / "results" / "engine.json"
    parser.add_argument("--output", type=Path, default=default)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    clock = Clock()
    trajectories: list[Trajectory] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = (arguments.run or Path(scratch) / "engine").absolute()
        run = prepare(folder, arguments.experiment, arguments.overrides, arguments.processes)
        engine = LocalEngine(
            run.experiment,
            run.initial_model(),
            device=torch.device("cpu"),
            helpers=arguments.processes - 1,
        )
        clock.processes += psutil.Process().children()
        initial = [copy.deepcopy(part.state_dict()) for part in states(engine)]
        for repeat in range(arguments.repeats):
            for part, state in zip(states(engine), initial, strict=True):
                part.load_state_dict(copy.deepcopy(state))
            trajectories = iteration(run, engine, clock)
            print(
                f"{repeat + 1}: "
                + "  ".join(f"{name} {times[-1]:.2f} s" for name, times in clock.wall.items()),
                flush=True,
            )
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(
            processes=arguments.processes,
            torch=torch.__version__,
            transformers=transformers.__version__,
        ),
        "experiment": arguments.experiment,
        "overrides": arguments.overrides,
        "episodes": len(trajectories),
        "turns": sum(len(trajectory.turns) for trajectory in trajectories),
        "tokens": sum(len(row.input_ids) for t in trajectories for row in t.rows),
        "sampled_tokens": sum(int(row.loss_mask.sum()) for t in trajectories for row in t.rows),
        "unit": "seconds of wall and processor time of one iteration, least of the repeats; "
        "advantage holds old log-probabilities, reference and values",
        "repeats": arguments.repeats,
        "seconds": {name: round(min(times), 3) for name, times in clock.wall.items()},
        "cpu_seconds": {name: round(min(times), 3) for name, times in clock.cpu.items()},
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    write_result(arguments.output, report)
    print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
