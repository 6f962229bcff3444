"""Environments as a taskset and an environment of verifiers (0.4): `vf-eval vagen-verifiers`.

A task is a level. The environment plays the user: it sends observations and ends the exchange with
the episode. The reward is success; the return and the number of turns are metrics.
"""

from typing import Any

import verifiers.v1 as vf

from vagen.envs.levels import Split
from vagen.interop.episodes import Episode, Level, levels
from vagen.service import environments_of


class VagenConfig(vf.TasksetConfig):
    """Which levels, under `--env.taskset`."""

    env_name: str = "FrozenLake"
    """Registered name such as `FrozenLake`, or `module:Class`."""
    env_config: dict[str, Any] = {}  # noqa: RUF012
    """Options of the environment."""
    split: Split = "test"
    levels: int = 64
    """Number of levels."""
    turns: int = 20
    """Responses after which an episode ends."""


class VagenData(vf.TaskData):
    """A level as data of a task."""

    level: Level


class VagenTask(vf.Task[VagenData, vf.State, vf.TaskConfig]):
    """A level."""


class VagenTaskset(vf.Taskset[VagenTask, VagenConfig]):
    """The first levels of a split."""

    def load(self) -> list[VagenTask]:
        """The tasks; the first message of each comes from `VagenEnv`."""
        config = self.config
        env = environments_of().open(config.env_name, config.env_config)
        env.reset(seed=0)
        prompt = env.system_prompt()
        env.close()
        found = levels(
            config.env_name, config.env_config, config.split, config.levels, config.turns
        )
        return [
            VagenTask(VagenData(name=each.name, system_prompt=prompt, level=each), config.task)
            for each in found
        ]


class VagenEnvConfig(vf.EnvConfig):
    """Who plays, under `--env.player`: by default a chat without tools, on this machine."""

    player: vf.AgentConfig = vf.AgentConfig(
        harness=vf.HarnessConfig(id="null"), runtime=vf.SubprocessConfig()
    )


class VagenEnv(vf.Env[VagenEnvConfig]):
    """Plays the environment with the player's responses."""

    async def run(self, task: VagenTask, agents: Any) -> None:
        """Plays an episode and records its reward and metrics."""
        async with (
            Episode(task.data.level) as episode,
            agents.player.interaction(task) as interaction,
        ):
            while not episode.over:
                segment = await interaction.turn([{"role": "user", "content": episode.content}])
                if segment.terminated:
                    break
                await episode.step(segment.last_reply)
            scores = episode.scores
            interaction.trace.record_reward("success", scores.pop("success"))
            interaction.trace.record_metrics(scores)
