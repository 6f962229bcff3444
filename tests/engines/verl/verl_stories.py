"""What several tests of the distributed engine share: starting one, and what it then does."""

import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vagen.engines.verl.env_vars import configure
from vagen.storage import FileEntry, commit_directory

OVERRIDES = (
    "actor_rollout_ref.actor.ppo_mini_batch_size=6",
    "algorithm.kl_ctrl.kl_coef=0.05",
    "critic.center_values=true",
    "actor_rollout_ref.actor.entropy_coeff=0.05",
    "actor_rollout_ref.actor.entropy_ctrl.target=9",
)
"""One optimizer step per network, and all networks there are."""


@contextmanager
def started(experiment: Any, model: Path, *settings: str) -> Iterator[Any]:
    """The distributed engine, on CPUs of this machine."""
    from vagen.engines.verl.launch import start
    from vagen.experiment.load import load_infra

    infra = ["engine=verl", "device=cpu", "threads=1", "verl.rollout=torch", *settings]
    engine = start(experiment, load_infra(None, [*infra, "verl.agent_workers=1"]), model)
    try:
        yield engine
    finally:
        engine.close()


def spawn(task: Callable[[int, int, Path], None], ranks: int, folder: Path) -> None:
    """Runs `task(rank, ranks, folder)` in a process per rank, which can talk to each other."""
    from torch.multiprocessing.spawn import start_processes

    multiprocessing.set_forkserver_preload(["warm_verl"])
    arguments = (ranks, folder, task)
    start_processes(_rank, arguments, nprocs=ranks, start_method="forkserver")


def _rank(rank: int, ranks: int, folder: Path, task: Callable[[int, int, Path], None]) -> None:
    configure(cpu=True)
    import torch

    torch.set_num_threads(1)
    store = f"file://{folder}/store-{task.__name__}-{ranks}"
    torch.distributed.init_process_group("gloo", store, rank=rank, world_size=ranks)
    task(rank, ranks, folder)
    torch.distributed.destroy_process_group()


@dataclass
class Story:
    """What an engine said: at first, after one update, and after a second one."""

    checkpoint: Path
    """After the first update."""
    values: list[Any] = field(default_factory=list)
    """Before any update."""
    first: dict[str, float] = field(default_factory=dict)
    """Metrics of the first update."""
    second: tuple[dict[str, float], list[Any]] = ({}, [])
    """Metrics of the second update, and log-probabilities after it."""
    found: dict[str, Any] = field(default_factory=dict)
    """What else happened to it."""


def rows_of(batch: Any) -> list[Any]:
    """All rows of a batch."""
    return [row for trajectory in batch.trajectories for row in trajectory.rows]


def without_pictures(row: Any, banned: Sequence[int]) -> Any:
    """The row as if its observations had been text."""
    kept = ~np.isin(row.input_ids, banned)
    return replace(
        row,
        images=[],
        columns={},
        **{name: getattr(row, name)[kept] for name in ("input_ids", "loss_mask", "turn_index")},
        rollout_logprobs=row.rollout_logprobs[kept],
    )


def with_columns(row: Any, logprobs: np.ndarray) -> Any:
    """The row with all that losses read; its old probabilities are about the present ones."""
    rng = np.random.default_rng(len(row.input_ids))
    names = ("advantages", "returns")
    columns = {name: rng.normal(size=len(logprobs)).astype(np.float32) for name in names}
    columns |= {"old_logprobs": logprobs + rng.normal(0, 0.1, len(logprobs)).astype(np.float32)}
    columns |= {"values": np.zeros_like(logprobs), "critic_mask": row.loss_mask.astype(np.float32)}
    return replace(row, columns={**columns, "expected": logprobs})


def tell(engine: Any, batch: Any, checkpoint: Path) -> Story:
    """Two updates; the checkpoint of the first is written during the second."""
    story = Story(checkpoint)
    story.values = engine.values(rows_of(batch), batch.images)[0]
    story.first = engine.update(rows_of(batch), batch.images, seed=3)
    known: dict[str, FileEntry] = {}
    with commit_directory(checkpoint, kind="checkpoint", known=known) as partial:
        finish = engine.begin_save(partial)
        story.second = go_on(engine, batch)
        known |= finish()
    return story


def go_on(engine: Any, batch: Any, checkpoint: Path | None = None) -> tuple[Any, Any]:
    """The second update, from a checkpoint if one is given, and log-probabilities after it."""
    if checkpoint is not None:
        engine.load(checkpoint, version="checkpoint")
    metrics = engine.update(rows_of(batch), batch.images, seed=4)
    return metrics, engine.logprobs(rows_of(batch), batch.images)


def kill_while_playing(engine: Any, victim: str, specs: Sequence[Any], sampling: Any) -> None:
    """The death of a process is one clear error, which tells which process it was."""
    from vagen.engines.verl.errors import EngineLost

    pid = engine.processes.places[victim].pid
    os.kill(pid, signal.SIGSTOP)  # nothing that needs it ends
    threading.Timer(1, os.kill, (pid, signal.SIGKILL)).start()
    begun = time.monotonic()
    with pytest.raises(EngineLost, match=rf"^{victim} died \(process {pid} on "):
        engine.play(specs, sampling=sampling, split="train")
    assert time.monotonic() - begun < 30


def two_iterations(run: Any) -> list[Any]:
    """Trains: weights change, and what servers say of their tokens is what the trainer says.

    Returns:
        The batches that were learnt from. One step off the second is of the weights from before.
    """
    from vagen.models.loading import load_model
    from vagen.rollout.batch import TrajectoryBatch
    from vagen.train import iterate

    with run.session():
        iterate(run, 0, 2)
    assert len(run.iteration_metrics()) == 2
    weights = [load_model(run.initial_model()).model.state_dict()]
    weights += [load_model(run.checkpoint(i) / "policy").model.state_dict() for i in range(2)]
    for before, after in itertools.pairwise(weights):
        assert any((before[name] != after[name]).any() for name in before)
    batches = [TrajectoryBatch.load(run.step(i, "advantage")) for i in range(2)]
    for iteration, batch in enumerate(batches):
        assert np.isfinite(sampled(batch, "advantages")).all()
        played, learnt = sampled(batch, "rollout_logprobs"), sampled(batch, "old_logprobs")
        if iteration and run.experiment.rollout_manager.one_step_off:
            assert batch.policy_version == "warm_start"
            assert np.abs(played - learnt).max() > 1e-3
            continue
        np.testing.assert_allclose(np.exp(played), np.exp(learnt), atol=1e-3)
        assert np.corrcoef(np.exp(played), np.exp(learnt))[0, 1] >= 0.99
    return batches


def sampled(batch: Any, of: str) -> np.ndarray:
    """A field or column at the sampled tokens of a batch."""
    return np.concatenate(
        [
            (row.columns[of] if of in row.columns else getattr(row, of))[row.loss_mask]
            for row in rows_of(batch)
        ]
    )
