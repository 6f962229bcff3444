"""Arms on the real pipeline: hours, resumable run by run.

    python -m benchmarks.method frozenlake report
    python -m benchmarks.method presets --seeds 0 1 2

An arm is a preset with overrides. All arms of a seed begin with the same warm start and play the
same number of episodes per iteration, however a preset divides them into levels and trajectories.
"""

import json
import multiprocessing
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.method.arms import Contrast
from benchmarks.method.report import ROOT
from vagen.config import PRESETS
from vagen.experiment.load import load_experiment, load_infra
from vagen.run.folder import read_results
from vagen.run.run import Run
from vagen.stages.build import build
from vagen.stages.evaluate import evaluate
from vagen.stages.execute import execute
from vagen.stages.warm_start import warm_start
from vagen.storage import write_whole

MAIN = ("vanilla_ppo", "grpo_mask", "turn_ppo_mask", "vagen_base", "vagen_full")


@dataclass(frozen=True)
class Study:
    """Arms of one experiment."""

    experiment: str
    arms: dict[str, tuple[str, ...]]
    """Overrides of each, `preset=...` among them."""
    contrasts: tuple[Contrast, ...] = ()
    shared: tuple[str, ...] = ()
    """Overrides of all arms."""
    warm: tuple[str, ...] = ()
    """Overrides of the warm start."""
    matched: tuple[float, float] = (0.0, 1.0)
    """Success on the validation levels that a warm start must have; a seed without it is skipped,
    so that arms do not differ by how much there was to see."""
    seeds: int = 8
    iterations: int = 60
    episodes: int = 128
    """Of an iteration."""


def _presets(*names: str) -> dict[str, tuple[str, ...]]:
    return {name: (f"preset={name}",) for name in names}


_CLAIMS = (
    Contrast("loss mask (token PPO)", "token_ppo", "vagen_base"),
    Contrast("turn rewards and turns", "vagen_base", "trico"),
    Contrast("bi-level against masked GAE, turn rewards", "trico_no_bi_level", "trico"),
    Contrast("turn λ .5 against 1", "trico", "trico, turn λ .5"),
    Contrast("VAGEN-Base against GRPO", "grpo_mask", "vagen_base"),
    Contrast("VAGEN-Base against Turn-PPO", "turn_ppo_mask", "vagen_base"),
)
_ABLATIONS = {
    **_presets("trico"),
    "trico, turn λ .5": ("preset=trico", "algorithm.high_level_lam=0.5"),
    **_presets("vagen_base", "trico_no_bi_level"),
    "grpo_mask": ("preset=grpo_mask", "trainer.critic_warmup=0"),
    **_presets("turn_ppo_mask", "token_ppo"),
}
_UNJUDGED = {
    f"{preset}, no judge": (f"preset={preset}", "judge.use_state_reward=false")
    for preset in ("vagen_full", "vagen_full_turn_lambda")
}
_FULL = tuple(Contrast(f"vagen_full against {name}", name, "vagen_full") for name in MAIN[:-1])
_WARM = ("warm_start.steps=600",)
"""What `frozenlake-tiny` had when the first arms were measured: such policies overlook holes."""
STUDIES = {
    "presets": Study(
        "frozenlake-tiny",
        {**_presets(*MAIN, "vagen_full_turn_lambda"), **_UNJUDGED},
        (
            *_FULL,
            Contrast("turn λ .5 against 1", "vagen_full", "vagen_full_turn_lambda"),
            Contrast("the judge", "vagen_full, no judge", "vagen_full"),
            Contrast(
                "the judge, turn λ .5", "vagen_full_turn_lambda, no judge", "vagen_full_turn_lambda"
            ),
        ),
        warm=_WARM,
        seeds=3,
        iterations=24,
    ),
    "frozenlake": Study(
        "frozenlake-tiny",
        _ABLATIONS,
        _CLAIMS,
        (
            "judge.use_state_reward=false",
            "actor_rollout_ref.actor.ppo_mini_batch_size=32",
            "trainer.critic_warmup=3",
            "envs.frozenlake.val_size=128",
            "envs.frozenlake.env_config.prompt_format=no_think",
            "envs.frozenlake.env_config.tags.answer=answer",
        ),
        warm=_WARM,
        matched=(0.42, 0.56),
    ),
}


def warm_policy(name: str, study: Study, outputs: Path, seed: int) -> float:
    """Makes the policy that every arm of a seed begins with; its success on validation levels."""
    folder = outputs / f"{name}-warm-{seed}"
    if folder.exists():
        run = Run.open(folder)
    else:
        infra = load_infra(None, [f"output_dir={outputs}", "threads=1"])
        overrides = [*study.shared, *study.warm, f"seed={seed}"]
        run = Run.create(load_experiment(study.experiment, overrides), infra, folder.name)
    for step in (build, warm_start):
        execute(run, step)
    execute(run, evaluate, name="warm_start", split="val")
    return float(read_results(run.evaluation("warm_start"))["success"])


def train(name: str, study: Study, arm: str, seed: int, outputs: Path) -> Run:
    """One run; goes on with one that was begun."""
    folder = outputs / f"{name}-{re.sub('[^a-z0-9_]+', '-', arm)}-{seed}"
    if not (folder / "summary.json").exists():
        command = [sys.executable, "-m", "vagen.cli.main"]
        if folder.exists():
            command += ["resume", str(folder)]
        else:
            policy = outputs / f"{name}-warm-{seed}" / "warm_start" / "policy"
            preset = study.arms[arm][0].removeprefix("preset=")
            group = PRESETS[preset].values["rollout_manager"].get("n_trajectory", 1)
            command += ["run", study.experiment, "--name", folder.name, *study.shared]
            # As the papers pay: the sum over turns, chance included.
            command += ["rollout_manager.turn_reward_budget=null", "judge.above_chance=false"]
            command += [*study.arms[arm], f"seed={seed}"]
            command += [f"data.train_batch_size={study.episodes // group}"]
            command += [f"actor_rollout_ref.model.path={policy}", "warm_start.steps=0"]
            command += [f"trainer.total_training_steps={study.iterations}"]
            command += [f"infra.output_dir={outputs}", "infra.threads=1"]
        with (outputs / f"{folder.name}.log").open("a") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log, cwd=ROOT)
    return Run.open(folder)


def summarize(runs: Sequence[Run]) -> dict[str, Any]:
    """Of an arm's runs: success in training by iteration, held-out success before and after."""
    summaries = [json.loads((run.path / "summary.json").read_text()) for run in runs]
    curves = [[row["train/success"] for row in run.iteration_metrics()] for run in runs]
    return {
        "curves": curves,
        "success": [summary["final"]["success"] for summary in summaries],
        "warm_start": [summary["warm_start"]["success"] for summary in summaries],
        "minutes": [summary["seconds"]["total"] / 60 for summary in summaries],
    }


def run_study(name: str, seeds: Sequence[int], jobs: int, outputs: Path) -> None:
    """Trains every arm that has no file yet: `pipeline/STUDY/ARM.json`.

    Args:
        name: A key of `STUDIES`.
        seeds: Candidates; none is 0, 1, ... until there are enough whose warm start matches.
        jobs: Runs side by side, a thread each.
        outputs: Folder of the runs, and of the files.
    """
    study = STUDIES[name]
    folder = outputs / "pipeline" / name
    folder.mkdir(parents=True, exist_ok=True)
    low, high = study.matched
    chosen: list[int] = []
    candidates = seeds or range(100)
    with multiprocessing.get_context("spawn").Pool(jobs) as workers:
        warm = workers.imap(partial(warm_policy, name, study, outputs), candidates)
        for seed, success in zip(candidates, warm, strict=True):
            if low <= success <= high:
                chosen.append(seed)
            if len(chosen) == study.seeds:
                break
    missing = []
    for arm in study.arms:
        path = folder / f"{arm}.json"
        if not path.exists() or json.loads(path.read_text())["seeds"] != chosen:
            missing.append(arm)
    with ThreadPoolExecutor(jobs) as pool:
        trained = {
            arm: [pool.submit(train, name, study, arm, seed, outputs) for seed in chosen]
            for arm in missing
        }
        for arm, runs in trained.items():
            found = summarize([run.result() for run in runs])
            with write_whole(folder / f"{arm}.json") as whole:
                whole.write_text(json.dumps({"seeds": chosen} | found) + "\n")
            print(f"pipeline: {name}: {arm}", flush=True)
