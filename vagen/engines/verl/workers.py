"""verl's workers with the calls that our engine makes of them.

A worker is a process of one rank. Importing this module registers our networks with verl: it is
the home of the worker classes, so every worker process does.
"""

from pathlib import Path
from typing import Any

from tensordict import TensorDict
from verl.single_controller.base.decorator import (
    Dispatch,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

import vagen.engines.verl.networks  # noqa: F401
from vagen.engines.verl.checkpoint import export_policy


class CriticWorker(TrainingWorker):
    """A rank of the critic."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def shift_values(self, shift: float) -> None:
        """Adds to every value."""
        self.engine.shift_values(shift)


class PolicyWorker(ActorRolloutRefWorker):
    """A rank of policy, reference and rollout."""

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def train_batch(self, data: TensorDict) -> Any:
        """One optimizer step of the policy; returns verl's metrics."""
        return self.actor.train_batch(data)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def export_policy(self, directory: str) -> None:
        """Writes a model directory with the policy's weights."""
        network = self.actor.engine
        source = network.model_config.local_path
        export_policy(network.module, source, network.processor, Path(directory), self.rank)
