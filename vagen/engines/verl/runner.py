"""A run through verl's own entry, `run_ppo`."""

from collections.abc import Mapping
from typing import Any

import ray
from omegaconf import DictConfig, open_dict
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from verl.utils.device import auto_set_device

_Runner: Any = TaskRunnerV1


class _TaskRunner(_Runner.__ray_metadata__.modified_class):
    """verl's task runner with our trainer and our processes that play."""

    def run(self, config: DictConfig) -> None:
        """Trains to the end of the configuration."""
        import vagen.engines.verl.trainer  # noqa: F401  # registers it in this process

        super().run(config)

    def init_agent_loop_manager(self) -> None:
        """Ours instead of verl's."""
        self.trainer.start_playing()
        self.agent_loop_manager = self.trainer.agent_loop_manager


VagenTaskRunner = ray.remote(_TaskRunner)


def train(config: DictConfig, *, iterate: str, arguments: Mapping[str, Any] | None = None) -> None:
    """Runs `trainer.total_training_steps` iterations in a Ray cluster and waits for them.

    Args:
        config: As `verl_config` makes it.
        iterate: `module:function`, called as `function(trainer, iteration, **arguments)`; returns
            metrics.
        arguments: Plain values.
    """
    with open_dict(config):
        config.trainer.iterate = iterate
        config.trainer.iterate_arguments = dict(arguments or {})
    auto_set_device(config)
    validate_config(
        config=config,
        use_reference_policy=need_reference_policy(config),
        use_critic=need_critic(config),
    )
    ours = not ray.is_initialized()
    try:
        run_ppo(config, task_runner_class=VagenTaskRunner)
    finally:
        if ours:
            ray.shutdown()
