"""Bytes that an iteration's rows take from the driver to the ranks of the verl engine.

Counted on real episodes, as they are pickled for Ray: with every call sending its rows anew, and
with rows in Ray's object store that calls only name (`vagen.engines.verl.rows`). Written as
section `data_movement` of benchmarks/results/verl-cpu.json.

    python benchmarks/data_movement.py [--ranks 8] [key=value ...]
"""

import argparse
import pickle
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from machine import write_verl_cpu

from vagen.config.schema import ExperimentConfig, has_reference
from vagen.engines.local.engine import LocalEngine
from vagen.engines.verl.env_vars import configure
from vagen.experiment.checks import has_critic
from vagen.experiment.load import load_experiment, load_infra
from vagen.models.processor import Processor
from vagen.rollout.episodes import training_specs
from vagen.rollout.types import TokenRow
from vagen.run.run import Run
from vagen.stages.build import build, load_levels
from vagen.stages.warm_start import warm_start

EXPERIMENT = "frozenlake-tiny"
COLUMNS = {"actor": ("old_logprobs", "advantages"), "critic": ("values", "returns", "critic_mask")}
Call = tuple[str, list[TokenRow], tuple[str, ...]]


def episodes(experiment: ExperimentConfig) -> tuple[list[TokenRow], dict[str, bytes], Processor]:
    """Rows of an iteration as a model without training plays it, with all columns."""
    with tempfile.TemporaryDirectory() as folder:
        infra = load_infra(None, [f"output_dir={folder}", "device=cpu"])
        run = Run.create(experiment, infra, name="rows")
        build(run)
        warm_start(run)
        engine = LocalEngine(experiment, run.initial_model(), device=torch.device("cpu"))
        specs = training_specs(experiment, load_levels(run), 0)
        sampling = experiment.actor_rollout_ref.rollout
        played, images = engine.play(specs, sampling=sampling, split="train")
    names = [name for names in COLUMNS.values() for name in names]
    rows = [
        replace(row, columns={n: np.zeros(len(row.input_ids), np.float32) for n in names})
        for trajectory in played
        for row in trajectory.rows
    ]
    return rows, images, engine.processor


def calls(experiment: ExperimentConfig, rows: list[TokenRow]) -> Iterator[Call]:
    """What an iteration asks of the ranks, in order."""
    yield "logprobs", rows, ()
    if has_reference(experiment):
        yield "reference", rows, ()
    if has_critic(experiment):
        yield "values", rows, ()
    actor = experiment.actor_rollout_ref.actor
    order = np.random.default_rng(0)
    for network in ("critic", "actor") if has_critic(experiment) else ("actor",):
        config: Any = experiment.critic if network == "critic" else actor
        size = config.ppo_mini_batch_size or actor.ppo_mini_batch_size
        for _ in range(config.ppo_epochs):
            for chosen in np.array_split(order.permutation(len(rows)), -(-len(rows) // size)):
                yield f"update_{network}", [rows[i] for i in chosen], COLUMNS[network]


def moved(
    asked: Sequence[Call], images: dict[str, bytes], processor: Processor, ranks: int
) -> dict[str, Any]:
    """Bytes of each kind of call, both ways."""
    from vagen.engines.verl.rows import SharedRows, to_batch

    stored: list[int] = []

    def put(entry: Any) -> int:
        stored.append(len(pickle.dumps(entry, protocol=5)))
        return len(stored)

    def mask(row: TokenRow) -> np.ndarray:
        return row.loss_mask

    shared = SharedRows(processor, mask, put=put)
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    steps = 0
    for name, rows, columns in asked:
        batch = to_batch(rows, images, processor, action_mask=mask, columns=columns)
        before[name] = before.get(name, 0) + len(pickle.dumps(batch, protocol=5))
        shares, _ = shared.shares(rows, images, ranks, columns)
        size = sum(len(pickle.dumps(share, protocol=5)) for share in shares)
        after[name] = after.get(name, 0) + size
        steps += name.startswith("update_")
    total = sum(after.values()) + sum(stored)
    updates = [sum(n for c, n in d.items() if c.startswith("update_")) for d in (before, after)]
    return {
        "calls": len(asked),
        "optimizer_steps": steps,
        "before": {**before, "total": sum(before.values()), "per_step": updates[0] // steps},
        "after": {
            "stored_rows": sum(stored),
            **after,
            "total": total,
            "per_step": updates[1] // steps,
        },
        "ratio": round(sum(before.values()) / total, 2),
        "ratio_per_step": round(updates[0] / updates[1], 2),
    }


def section(overrides: list[str], ranks: int) -> dict[str, Any]:
    """The section of the result."""
    configure(cpu=True)
    experiment = load_experiment(EXPERIMENT, overrides)
    rows, images, processor = episodes(experiment)
    shown = sum(len(images[digest]) for row in rows for digest in row.images)
    return {
        "experiment": EXPERIMENT,
        "overrides": overrides,
        "ranks": ranks,
        "rows": len(rows),
        "tokens": sum(len(row.input_ids) for row in rows),
        "png_bytes": shown,
        **moved(list(calls(experiment, rows)), images, processor, ranks),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    write_verl_cpu(section(options.words, options.ranks), "data_movement")


if __name__ == "__main__":
    main()
