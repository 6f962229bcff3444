"""Processes of the distributed engine: verl's ranks and rollout servers, and the players."""

import copy
from typing import Any

import ray
from omegaconf import DictConfig
from verl.checkpoint_engine import CheckpointEngineManager
from verl.single_controller.ray import (
    RayClassWithInitArgs,
    RayWorkerGroup,
    ResourcePoolManager,
    create_colocated_worker_cls,
)
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine_workers import TrainingWorkerConfig
from verl.workers.rollout.llm_server import LLMServerManager

from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.schema import has_reference
from vagen.engines.verl.mapping import seeds_requests
from vagen.engines.verl.rollout_workers import ServerClient, start_players
from vagen.engines.verl.workers import CriticWorker, PolicyWorker
from vagen.experiment.checks import has_critic
from vagen.rollout.runner import derive_seed

RANK_PREFIX = "vagen_rank_"
"""Prefix of the ranks' actor names in the Ray cluster."""
RECEIVER_PREFIX = "rollout_standalone_"
"""verl's name for processes that receive weights."""


class WorkerGroups:
    """Starts all processes with the configured model, and ends them.

    A rank is a process with a part of every network. Players call the rollout servers, which get
    the policy's weights before each rollout. Servers share the ranks' GPUs or have their own
    (`infra.verl.rollout_gpus`), each with a process that receives weights.

    Attributes:
        policy: Worker group of `PolicyWorker`: policy, and reference if there is one.
        critic: Worker group of `CriticWorker`; None without a critic.
        servers: verl's manager of the rollout servers.
        separate_servers: Whether servers share no GPU with ranks.
        players: Ray actors of `vagen.engines.verl.rollout_workers.RolloutWorker`.
    """

    def __init__(self, experiment: ExperimentConfig, infra: InfraConfig, config: DictConfig):
        """Starts the processes in the connected Ray cluster.

        Args:
            experiment: The experiment with resolved environments.
            infra: Layout of the processes.
            config: verl's configuration, resolved.
        """
        rollout = config.actor_rollout_ref.rollout
        self.separate_servers = infra.verl.rollout_gpus > 0
        self._always_awake = self.separate_servers or experiment.rollout_manager.one_step_off
        self._servers_forget = rollout.free_cache_engine
        """Whether a server that sleeps loses its weights."""
        self._seeded = not seeds_requests(infra, cpu=config.trainer.device == "cpu")
        """Whether servers are seeded, since requests are not."""
        self._fresh = False
        """Whether the servers have the policy's weights and are awake."""
        self._asleep = False
        layout = {"ranks": [config.trainer.n_gpus_per_node] * config.trainer.nnodes}
        pools = ResourcePoolManager(layout, mapping={})
        pools.create_resource_pool()
        self._pool = pools.resource_pool_dict["ranks"]
        self.policy, self.critic = _start_ranks(self._pool, experiment, config)
        colocated = None if self.separate_servers else self.policy
        self.servers: Any = LLMServerManager.create(config=config, worker_group=colocated)
        self._weights: Any = CheckpointEngineManager(
            config=omega_conf_to_dataclass(rollout.checkpoint_engine),
            actor_wg=self.policy,
            replicas=self.servers.get_replicas(),
        )
        if not self.separate_servers:
            self._sleep()
        client = self.servers.get_client(client_cls=ServerClient)
        self.players = start_players(client, experiment, infra)

    def synchronize(self) -> None:
        """Gives the servers the policy's weights, if they have others or none."""
        if not self._fresh:
            self._weights.update_weights(0)
            self._fresh = True
        self._asleep = False

    def seed(self, seed: int) -> None:
        """Seeds the servers' sampling, each differently, if requests carry no seeds."""
        if self._seeded:
            ray.get(
                [
                    replica.servers[0].collective_rpc.remote(
                        "seed_sampling", args=(derive_seed(seed, number),)
                    )
                    for number, replica in enumerate(self.servers.get_replicas())
                ]
            )

    def weights_changed(self) -> None:
        """Marks the servers' weights as outdated."""
        self._fresh = False

    def make_room(self) -> None:
        """Frees the servers' GPU memory for training.

        vLLM drops its weights then; other servers keep them. Servers that play while the policy
        learns keep everything.
        """
        if not (self._always_awake or self._asleep):
            self._sleep()
            if self._servers_forget:
                self._fresh = False

    def _sleep(self) -> None:
        self._weights.sleep_replicas()
        self._asleep = True

    def processes(self) -> dict[str, Any]:
        """The Ray actors of all ranks, servers and players, by name."""
        replicas = self.servers.get_replicas()
        servers = [server for replica in replicas for server in replica.servers]
        kinds = {"rank": self.policy.workers, "rollout server": servers, "player": self.players}
        if self._own_pools():
            receivers = [worker for replica in replicas for worker in replica.workers]
            kinds["weight receiver"] = receivers
        return {
            f"{kind} {number}": actor
            for kind, actors in kinds.items()
            for number, actor in enumerate(actors)
        }

    def close(self) -> None:
        """Ends all processes and frees their GPUs."""
        for process in self.processes().values():
            ray.kill(process)
        for pool in (self._pool, *self._own_pools()):
            for group in pool.get_placement_groups():
                ray.util.remove_placement_group(group)

    def _own_pools(self) -> list[Any]:
        """Resource pools of servers that share no GPU with ranks."""
        pools = [replica.resource_pool for replica in self.servers.get_replicas()]
        return [pool for pool in pools if pool is not None]


def _start_ranks(pool: Any, experiment: ExperimentConfig, config: DictConfig) -> tuple[Any, Any]:
    """Worker groups of policy and critic; they share their processes, one per GPU of the pool."""
    # With adapters the reference is the policy without them.
    adapters = experiment.actor_rollout_ref.model.lora_rank > 0
    role = "actor_rollout_ref" if has_reference(experiment) and not adapters else "actor_rollout"
    if not config.actor_rollout_ref.hybrid_engine:
        # Their number need not be a multiple of a server's GPUs.
        config = copy.deepcopy(config)
        config.actor_rollout_ref.rollout.tensor_model_parallel_size = 1
    policy = ray.remote(PolicyWorker)
    classes = {role: RayClassWithInitArgs(policy, config=config.actor_rollout_ref, role=role)}
    if has_critic(experiment):
        critic = ray.remote(CriticWorker)
        classes["critic"] = RayClassWithInitArgs(critic, config=_critic_config(config))
    groups = RayWorkerGroup(
        pool,
        create_colocated_worker_cls(classes),
        name_prefix=RANK_PREFIX,
        device_name=config.trainer.device,
    ).spawn(classes.keys())
    if "critic" in groups:
        groups["critic"].reset()
    groups[role].init_model()
    return groups[role], groups.get("critic")


def _critic_config(config: DictConfig) -> TrainingWorkerConfig:
    critic: Any = omega_conf_to_dataclass(config.critic)
    critic.engine.infer_max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
    critic.engine.max_token_len_per_gpu = critic.ppo_max_token_len_per_gpu
    return TrainingWorkerConfig(
        model_type="value_model",
        model_config=critic.model,
        engine_config=critic.engine,
        optimizer_config=critic.optim,
        checkpoint_config=critic.checkpoint,
        profiler_config=None,
    )
