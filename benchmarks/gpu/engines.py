"""Engines that GPU checks measure: the local one, the distributed one, and one rank of it alone."""

import gc
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vagen.config import ExperimentConfig, InfraConfig


@contextmanager
def local_engine(config: ExperimentConfig, infra: InfraConfig) -> Iterator[Any]:
    """The engine for one machine, as a run has it."""
    from vagen.engines.make import make_engine

    path = config.actor_rollout_ref.model.path
    engine = make_engine(config, infra, path, version="initial")
    try:
        yield engine
    finally:
        _empty(engine)


@contextmanager
def started(config: ExperimentConfig, infra: InfraConfig) -> Iterator[Any]:
    """The distributed engine as a run has it: Ray, ranks, rollout servers, players."""
    from vagen.engines.verl.launch import start

    engine = start(config, infra, config.actor_rollout_ref.model.path)
    try:
        yield engine
    finally:
        engine.close()


class Alone:
    """A worker group whose one worker is this process."""

    world_size = 1

    def __init__(self, worker: Any):
        self.worker = worker

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.worker, name)

        def call(*shares: Any, **options: Any) -> list[Any]:
            own = (share[0] if isinstance(share, list) else share for share in shares)
            return [method(*own, **options)]

        return call


class OneRank:
    """verl's ranks as an engine has them, this process being the only one: no Ray, no servers."""

    def __init__(self, experiment: ExperimentConfig, config: Any):
        from vagen.config.schema import has_reference
        from vagen.engines.verl.groups import _critic_config
        from vagen.engines.verl.workers import CriticWorker, PolicyWorker
        from vagen.experiment.checks import has_critic

        adapters = experiment.actor_rollout_ref.model.lora_rank > 0
        policy = PolicyWorker(config.actor_rollout_ref, role="actor")
        policy.init_model()
        if has_reference(experiment) and not adapters:
            reference = PolicyWorker(config.actor_rollout_ref, role="ref")
            reference.init_model()
            policy.ref = reference.ref
        self.policy, self.critic = Alone(policy), None
        if has_critic(experiment):
            critic = CriticWorker(_critic_config(config))
            critic.reset()
            self.critic = Alone(critic)

    def processes(self) -> dict[str, Any]:
        """None beside this one."""
        return {}

    def make_room(self) -> None:
        """There are no servers."""

    weights_changed = close = make_room


def join_alone() -> None:
    """Makes this process the only rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@contextmanager
def one_rank(config: ExperimentConfig, infra: InfraConfig) -> Iterator[Any]:
    """The distributed engine over a `OneRank`."""
    from vagen.engines.verl.env_vars import configure
    from vagen.engines.verl.mapping import is_cpu

    configure(cpu=is_cpu(infra))
    join_alone()
    from omegaconf import OmegaConf

    from vagen.engines.verl.config import verl_config
    from vagen.engines.verl.engine import VerlEngine

    path = config.actor_rollout_ref.model.path
    verl = verl_config(config, infra, path)
    OmegaConf.resolve(verl)
    ranks: Any = OneRank(config, verl)
    engine = VerlEngine(config, path, groups=ranks)
    del ranks
    try:
        yield engine
    finally:
        engine.close()
        _empty(engine)


def _empty(engine: Any) -> None:
    """Gives its memory back, whoever still has a name for it."""
    import torch

    vars(engine).clear()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
