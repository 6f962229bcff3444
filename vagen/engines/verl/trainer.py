"""Our trainer in verl: its worker groups, servers and weight synchronisation, our algorithm.

Shape of a run: verl's `run_ppo` makes a `VagenTaskRunner` (`runner.py`), which makes this trainer,
lets verl build everything (`init`), and calls `fit`. There a step is one iteration of ours.
"""

import importlib
from typing import Any

import ray
import transfer_queue
from omegaconf import DictConfig, open_dict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer
from verl.workers.rollout.llm_server import LLMServerClient

from vagen.engines.verl.agent_loop import PlayClient, PlayManager
from vagen.engines.verl.environment import TRAINER
from vagen.engines.verl.workers import CriticWorker, PolicyWorker


@register_trainer(TRAINER)
class VagenTrainer(PPOTrainerSync):
    """Owns verl's parts (`actor_rollout_wg`, `critic_wg`, `ref_policy_wg`, `checkpoint_manager`).

    What a step computes is not verl's: rewards, advantages and losses are those of our stages over
    `vagen.engines.verl.engine.VerlEngine`, so verl's `_compute_advantage`, `_update_actor` and the
    like are never called. Neither are its replay buffer, data loader, validation and checkpoints.
    """

    # Their methods are coroutines that verl runs to the end where nobody waits for them.
    checkpoint_manager: Any
    agent_loop_manager: Any

    def __init__(self, config: DictConfig):
        with open_dict(config):
            config.reward.num_workers = 0  # judging is part of playing
        super().__init__(config)
        self._fresh = False
        """Whether the servers have the actor's weights and are awake."""

    def _init_resource_pool_mgr(self) -> None:
        """Our worker classes in the place of verl's."""
        super()._init_resource_pool_mgr()
        for role in self.role_worker_mapping:
            worker = CriticWorker if role == Role.Critic else PolicyWorker
            self.role_worker_mapping[role] = ray.remote(worker)

    def _build_replay_buffer(self) -> None:
        """None: `rollout.play` collects finished episodes."""

    def _init_dataloader(self) -> None:
        """There are no files of prompts: episodes come with `play`."""
        self.total_training_steps = self.config.trainer.total_training_steps
        self.steps_per_epoch = self.total_training_steps + 1

    def _load_checkpoint(self) -> None:
        """The stages load theirs."""
        self.global_steps = 0

    def _save_checkpoint(self) -> None:
        """The stages save theirs."""

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict, *args: Any, **kwargs: Any
    ) -> None:
        """The stages have measured all there is."""

    def on_init_end(self) -> None:
        """Nothing: the servers get the weights before they play."""

    def on_step_end(self) -> None:
        """Nothing: the servers get the weights before they play."""

    def get_llm_client(self) -> LLMServerClient:
        """The client that plays episodes."""
        return self.llm_server_manager.get_client(client_cls=PlayClient)

    def start_playing(self) -> None:
        """Launches the processes that play; `run_ppo` and the session call it after `init`."""
        self.agent_loop_manager = PlayManager.create(
            config=self.config, llm_client=self.get_llm_client(), reward_loop_worker_handles=[]
        )

    def synchronize(self) -> None:
        """Gives the servers the actor's weights, if they have others or none."""
        if not self._fresh:
            self.checkpoint_manager.update_weights(self.global_steps)
            self._fresh = True

    def weights_changed(self) -> None:
        """The actor has other weights than the servers."""
        self._fresh = False

    def make_room(self) -> None:
        """Lets the servers give up the memory that training on their GPUs needs.

        vLLM drops its weights with that; where nothing is given up they stay. Servers that play
        while the actor learns keep everything.
        """
        if self.config.trainer.one_step_off:
            return
        self.checkpoint_manager.sleep_replicas()
        if self.config.actor_rollout_ref.rollout.free_cache_engine:
            self._fresh = False

    def processes(self) -> dict[str, Any]:
        """The Ray actors of all ranks, servers and players, by name; a rank holds every network."""
        kinds = {
            "rank": self.actor_rollout_wg.workers,
            "rollout server": [
                server
                for replica in self.llm_server_manager.get_replicas()
                for server in replica.servers
            ],
            "agent loop worker": self.agent_loop_manager.agent_loop_workers,
        }
        return {
            f"{kind} {number}": actor
            for kind, actors in kinds.items()
            for number, actor in enumerate(actors)
        }

    def close(self) -> None:
        """Ends all processes and gives their GPUs back."""
        transfer_queue.close()
        for process in self.processes().values():
            ray.kill(process)
        for pool in self.resource_pool_manager.resource_pool_dict.values():
            for group in pool.get_placement_groups():
                ray.util.remove_placement_group(group)

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        """One iteration: calls what `trainer.iterate` names, `module:function`.

        It is called as `function(trainer, iteration, **arguments)` with `trainer.iterate_arguments`
        and returns metrics.
        """
        module, _, name = self.config.trainer.iterate.partition(":")
        iterate = getattr(importlib.import_module(module), name)
        arguments = self.config.trainer.iterate_arguments or {}
        metrics |= iterate(self, self.global_steps - 1, **arguments)
        # `fit` clears what a step leaves in the queue, and there must be something to clear.
        key = f"iteration-{self.global_steps}"
        return transfer_queue.kv_put(key=key, partition_id="steps", tag={"done": True})
