"""Does it recover: a spike in the middle of a training, with the guard and without it.

    python benchmarks/stability.py --seeds 0 1 2 --jobs 2

trains one run per seed up to the injection; from there it branches: untouched, and per injection
one branch with the guard on and one with it off. All branches of a seed share their past, their
levels and their sampling seeds, so they differ by the injection and the guard alone. Each final
policy plays the same held-out levels. Writes `benchmarks/results/stability.json` and the curves.
What was finished is taken up again if the command is repeated with the same `--outputs`.

Injections, made around `LocalEngine.update` from outside:

- `rate`: one update with learning rates x 100;
- `gradients`: one update with gradients x 1000 and no clipping;
- `advantages`: two updates with advantages x -1000 and no clipping, of gradients or of ratios.

AdamW divides a step by the size of past gradients, so that the last two cannot throw the weights
far: they do their harm by what they leave in its moments, which makes later steps small. The faults
pass by themselves, so the guard only draws another batch here (`trainer.guard.lr_factor` 1).
"""

import argparse
import json
import multiprocessing
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from machine import describe_machine, header

from vagen import progress
from vagen.engines.local.engine import LocalEngine
from vagen.experiment.load import load_experiment, load_infra
from vagen.report import write_comparison_curve
from vagen.run.folder import committed, read_results
from vagen.run.layout import FINAL
from vagen.run.run import Run
from vagen.stages.build import build
from vagen.stages.evaluate import evaluate
from vagen.stages.execute import execute
from vagen.stages.finalize import finalize
from vagen.stages.warm_start import warm_start
from vagen.steps import WARM_START
from vagen.storage import read_manifest
from vagen.tracking import paired_bootstrap, paired_seeds
from vagen.train import iterate

ROOT = Path(__file__).parent.parent
UNTOUCHED = "untouched"
SETTING = (
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "actor_rollout_ref.actor.optim.lr_warmup_steps=4",
    "trainer.guard.lr_factor=1.0",
)
"""What a short training changes in the experiment: more steps per iteration, sooner."""
FREE = 1.0e9
"""A limit that is none."""


@dataclass(frozen=True)
class Injection:
    """What goes wrong."""

    updates: int = 1
    rates: float = 1.0
    gradients: float = 1.0
    advantages: float = 1.0
    clipped: bool = True


INJECTIONS = {
    "rate": Injection(rates=100.0),
    "gradients": Injection(gradients=1000.0, clipped=False),
    "advantages": Injection(updates=2, advantages=-1000.0, clipped=False),
}


@dataclass(frozen=True)
class Plan:
    """What is trained."""

    experiment: str
    seeds: tuple[int, ...]
    injections: tuple[str, ...]
    iterations: int
    at: int
    outputs: Path
    threads: int
    words: tuple[str, ...]

    def branches(self) -> list[tuple[str, str | None, bool]]:
        """Name, injection and guard of every branch of a seed."""
        wrong = [
            (f"{name}, guard {state}", name, state == "on")
            for name in self.injections
            for state in ("on", "off")
        ]
        return [(UNTOUCHED, None, False), *wrong]

    def folder(self, seed: int, branch: str) -> str:
        """Name of a branch's run."""
        return f"seed-{seed}-{branch.replace(', ', '-').replace(' ', '-')}"


@contextmanager
def injected(injection: Injection) -> Iterator[None]:
    """While open, updates go wrong as the injection says."""
    original = LocalEngine.update

    def update(engine: LocalEngine, rows: Any, images: Any, **options: Any) -> dict[str, float]:
        scale, config = engine.lr_scale, engine.config
        modules = [engine.actor.model, *([engine.critic] if engine.critic else [])]
        hooks = [
            parameter.register_hook(lambda gradient: gradient * injection.gradients)
            for module in modules
            for parameter in module.parameters()
            if parameter.requires_grad
        ]
        engine.lr_scale *= injection.rates
        if not injection.clipped:
            engine.config = without_clipping(config)
        wrong = [
            replace(
                row,
                columns=row.columns
                | {"advantages": row.columns["advantages"] * injection.advantages},
            )
            for row in rows
        ]
        try:
            return original(engine, wrong, images, **options)
        finally:
            engine.lr_scale, engine.config = scale, config
            for hook in hooks:
                hook.remove()

    with patch.object(LocalEngine, "update", update):
        yield


def without_clipping(config: Any) -> Any:
    """The experiment with gradients of any norm and ratios of any size let through."""
    free = {"grad_clip": FREE, "grad_norm_threshold": FREE}
    models = config.actor_rollout_ref
    ratios = {"clip_ratio_low": FREE, "clip_ratio_high": FREE}
    actor = models.actor.model_copy(update=free | ratios)
    return config.model_copy(
        update={
            "actor_rollout_ref": models.model_copy(update={"actor": actor}),
            "critic": config.critic.model_copy(update=free),
        }
    )


def new_run(plan: Plan, seed: int, branch: str, guard: bool) -> Run:
    """An empty run of a branch, or the one that is there."""
    folder = plan.outputs / plan.folder(seed, branch)
    if (folder / "begun").exists():
        return Run.open(folder)
    if folder.exists():
        shutil.rmtree(folder)
    overrides = [*SETTING, *plan.words, f"seed={seed}"]
    overrides += [f"trainer.total_training_steps={plan.iterations}"]
    overrides += [f"trainer.guard.enable={str(guard).lower()}"]
    path = ROOT / "experiments" / f"{plan.experiment}.yaml"
    infra = load_infra(None, [f"output_dir={plan.outputs}", f"threads={plan.threads}"])
    return Run.create(load_experiment(path, overrides), infra, name=folder.name)


def branch_off(plan: Plan, seed: int, branch: str, guard: bool, trunk: Run) -> Run:
    """A run with the trunk's past, up to the injection."""
    run = new_run(plan, seed, branch, guard)
    if not (run.path / "begun").exists():
        parts = [Path("levels"), Path("warm_start"), Path("evaluations") / WARM_START]
        parts += [
            trunk.step(iteration, "update").relative_to(trunk.path) for iteration in range(plan.at)
        ]
        parts += [
            folder.relative_to(trunk.path) for folder in (trunk.path / "checkpoints").glob("[0-9]*")
        ]
        for part in parts:
            shutil.copytree(trunk.path / part, run.path / part)
        (run.path / "begun").touch()
    return run


def train(run: Run, start: int, stop: int, injection: Injection | None = None) -> None:
    """Trains some iterations, the updates of the first ones with an injection."""
    progress.configure(run.events)
    progress.describe(run.name, run.experiment.trainer.total_training_steps, done=start)
    cut = start
    if injection:
        cut = min(start + injection.updates, stop)
        with injected(injection):
            iterate(run, start, cut)
    iterate(run, cut, stop)


def train_seed(plan: Plan, seed: int) -> None:
    """Trains all branches of a seed."""
    trunk = new_run(plan, seed, UNTOUCHED, guard=False)
    (trunk.path / "begun").touch()
    progress.configure(trunk.events)
    execute(trunk, build)
    execute(trunk, warm_start)
    execute(trunk, evaluate, name=WARM_START, split="test")
    train(trunk, 0, plan.at)
    runs = {
        branch: branch_off(plan, seed, branch, guard, trunk)
        for branch, injection, guard in plan.branches()
        if injection
    }
    for branch, injection, _ in plan.branches():
        run = runs.get(branch, trunk)
        train(run, plan.at, plan.iterations, INJECTIONS[injection] if injection else None)
        execute(run, evaluate, name=FINAL, split="test")
        execute(run, finalize)
        run.engine = None
    progress.close()


def outcome(run: Run, untouched: Run, at: int) -> dict[str, Any]:
    """How a branch ended, compared with the untouched one on the same levels."""
    results = read_results(run.evaluation(FINAL))
    success = [row["train/success"] for row in run.iteration_metrics()]
    updates = [
        read_manifest(run.step(i, "update")).payload
        for i in range(at, run.last_iteration + 1)
        if committed(run.step(i, "update"))
    ]
    return {
        "final": {key: results[key] for key in ("success", "ci95", "levels")},
        "difference": difference(run, untouched),
        "train_success": [round(value, 4) for value in success],
        "rollbacks": [
            {"iteration": at + i, **payload["rollback"]}
            for i, payload in enumerate(updates)
            if "rollback" in payload
        ],
        "condemned": sum("condemned" in payload for payload in updates),
    }


def difference(run: Run, untouched: Run) -> dict[str, Any]:
    """Final success minus that of the untouched run of the same seed, paired by level."""
    found, reference = (
        read_results(each.evaluation(FINAL))["by_level"] for each in (run, untouched)
    )
    pairs = [(reference[level], found[level]) for level in sorted(found.keys() & reference)]
    paired = paired_bootstrap([a for a, _ in pairs], [b for _, b in pairs], seed=0)
    return {"value": paired.gain, "ci95": list(paired.ci95), "pairs": len(pairs)}


def over_seeds(differences: Sequence[float]) -> dict[str, Any]:
    """Mean of the differences of all seeds; of a single one there is no interval."""
    found = paired_seeds([0.0] * len(differences), differences)
    return {"value": found.gain, "ci95": found.ci95, "seeds": len(differences)}


def report(plan: Plan, note: str) -> dict[str, Any]:
    """Results and curves of all that was trained."""
    runs = {
        branch: [Run.open(plan.outputs / plan.folder(seed, branch)) for seed in plan.seeds]
        for branch, _, _ in plan.branches()
    }
    untouched = runs[UNTOUCHED]
    branches = {
        branch: [outcome(run, other, plan.at) for run, other in zip(group, untouched, strict=True)]
        for branch, group in runs.items()
    }
    result = {
        **header(note),
        "machine": describe_machine(),
        "experiment": plan.experiment,
        "overrides": [*SETTING, *plan.words],
        "iterations": plan.iterations,
        "injected_at": plan.at,
        "seeds": list(plan.seeds),
        "warm_start": [read_results(run.evaluation(WARM_START))["success"] for run in untouched],
        "branches": branches,
        "all_seeds": {
            branch: over_seeds([found["difference"]["value"] for found in group])
            for branch, group in branches.items()
        },
    }
    path = ROOT / "benchmarks" / "results" / "stability.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    figure = write_comparison_curve(
        {branch: [run.iteration_metrics() for run in group] for branch, group in runs.items()},
        ROOT / "docs" / "images" / "stability.png",
        title=f"{plan.experiment}: success in training, a fault at iteration {plan.at}",
        limits=(0.0, 1.0),
        window=2,
    )
    print(path, figure, sep="\n")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", default="frozenlake-tiny")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--injections", nargs="+", choices=INJECTIONS, default=list(INJECTIONS))
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--at", type=int, default=6, help="first iteration that goes wrong")
    parser.add_argument("--jobs", type=int, default=1, help="seeds trained side by side")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--outputs", type=Path, default=ROOT / "outputs" / "stability")
    parser.add_argument("--note", default="", help="how the machine was used meanwhile")
    options, words = parser.parse_known_args()
    plan = Plan(
        experiment=options.experiment,
        seeds=tuple(options.seeds),
        injections=tuple(options.injections),
        iterations=options.iterations,
        at=options.at,
        outputs=options.outputs.absolute(),
        threads=options.threads,
        words=tuple(words),
    )
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=spawn) as pool:
        for done in [pool.submit(train_seed, plan, seed) for seed in plan.seeds]:
            done.result()
    result = report(plan, options.note)
    for branch, group in result["branches"].items():
        for seed, found in zip(plan.seeds, group, strict=True):
            print(
                f"{branch}, seed {seed}: {found['final']['success']:.3f}, against untouched "
                f"{as_text(found['difference'])}, {len(found['rollbacks'])} rollbacks"
            )
        print(f"{branch}, all seeds: {as_text(result['all_seeds'][branch])}")


def as_text(found: dict[str, Any]) -> str:
    """A difference with its interval."""
    text = f"{found['value']:+.3f}"
    return f"{text} [{found['ci95'][0]:+.3f}, {found['ci95'][1]:+.3f}]" if found["ci95"] else text


if __name__ == "__main__":
    main()
