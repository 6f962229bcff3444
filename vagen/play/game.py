"""One episode that is played turn by turn, each turn by a person or by an agent.

It is an episode of `vagen.rollout.runner`, so that its prompts, contexts, rewards and files are
those of an evaluation: the policy waits until it is given an answer.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from PIL.Image import Image

from vagen.config import config_digest
from vagen.config.errors import unknown_name
from vagen.config.schema import EnvSpec, ExperimentConfig
from vagen.envs import make
from vagen.envs.base import AgentEnv
from vagen.envs.images import png_bytes
from vagen.envs.parsing import SectionName, write_response
from vagen.envs.registry import get_environment
from vagen.evaluation.transcript import Transcript, without_token_limits
from vagen.report.environment import truth_of
from vagen.report.viewer import write_report
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.play import make_environment, make_runner
from vagen.rollout.runner import EpisodeSpec
from vagen.rollout.types import Generation, Sampling, Status, Trajectory
from vagen.service import AsyncEnv, environments_of

TURNS = 30
"""Most turns of an environment that is played by its name."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What an answer is wanted for."""

    messages: list[dict[str, Any]]
    """The conversation as the model reads it: `role`, and `content` as in `Transcript.messages`."""
    sampling: Sampling
    env: AsyncEnv


@dataclass(slots=True)
class Step:
    """One answer and its result."""

    by: str
    answer: str
    sections: dict[str, str]
    """Texts of the parsed answer by section; empty if its layout is wrong."""
    actions: list[str]
    reward: float
    format_correct: bool
    effective: bool
    truth: str
    """What is true after it."""


@dataclass(slots=True)
class Shown:
    """What a player sees."""

    level: int
    turn: int
    text: str
    frames: list[bytes]
    """PNG."""
    truth: str
    """What is true now."""
    steps: list[Step] = field(default_factory=list)
    score: float = 0.0
    done: bool = False
    success: bool = False
    error: str = ""


def experiment_of(env_name: str, options: dict[str, Any]) -> ExperimentConfig:
    """An experiment with this environment alone, to be played for at most `TURNS` turns.

    Raises:
        UnknownEnvironmentError: There is none of this name.
        ConfigError: An option is unknown, or its value is impossible.

    Example:
        `experiment_of("Sokoban", {"dim_room": [7, 7]})`
    """
    get_environment(env_name)
    name = env_name.rpartition(":")[2]
    config = ExperimentConfig(
        name=name.lower(), envs={name: EnvSpec(env_name=env_name, env_config=options)}
    )
    limits = config.rollout_manager.model_copy(update={"max_turns": TURNS})
    return config.model_copy(update={"rollout_manager": limits})


class Game:
    """Plays levels of one environment of an experiment.

    Example:
        ```python
        game = Game(experiment_of("FrozenLake", {}))
        shown = await game.start(7)
        shown = await game.play(game.write({"answer": "Right"}), "me")
        ```
    """

    def __init__(
        self, config: ExperimentConfig, config_id: str | None = None, split: str = "test"
    ) -> None:
        """Prepares it.

        Args:
            config: The experiment: prompt, turns, context and sampling are its.
            config_id: Which of its environments; None for the first.
            split: Split of the levels.

        Raises:
            GameError: There is no such environment.
        """
        if config_id is not None and config_id not in config.envs:
            raise GameError(unknown_name("environment", config_id, [*config.envs]))
        self.config = without_token_limits(config)
        self.config_id = config_id or next(iter(config.envs))
        self.spec, self.split = config.envs[self.config_id], split
        self.about: AgentEnv = make(self.spec.env_name, self.spec.env_config, split=split)
        """Another instance, for what does not depend on the episode."""
        self.shown: Shown | None = None
        self.finished: Trajectory | None = None
        self._task: asyncio.Task[Trajectory] | None = None
        self._asked: asyncio.Queue[Asked] = asyncio.Queue()
        self._given: asyncio.Queue[str] = asyncio.Queue()
        self._by = ""
        self._now: Asked | None = None
        self._images: dict[str, bytes] = {}

    @property
    def actions(self) -> list[str]:
        """Names of the actions, if they are few; else none."""
        return [*getattr(self.about, "actions", ())]

    @property
    def asked(self) -> Asked:
        """What an answer is wanted for now.

        Raises:
            GameError: The episode has ended, or none was started.
        """
        if self._now is None:
            raise GameError("the episode has ended: start a level")
        return self._now

    def write(self, texts: dict[SectionName, str]) -> str:
        """An answer in the environment's layout; what is not given is a dash."""
        layout = self.about.config.layout
        given = {name: texts.get(name) or "-" for name in layout.sections}
        if layout.memory and "memory" not in texts:
            given["memory"] = "keep"
        return write_response(layout, self.about.config.tags, given)

    async def start(self, level: int) -> Shown:
        """Begins the level of this seed; an episode that has not ended is dropped."""
        await self.close()
        self._now = self.finished = None
        self._asked, self._given = asyncio.Queue(), asyncio.Queue()
        self.shown = Shown(level, 0, "", [], "")
        name = f"{self.split}-{self.config_id}-{level}"
        spec = EpisodeSpec(
            trajectory_id=name,
            group_id=name,
            config_id=self.config_id,
            env_name=self.spec.env_name,
            env_config_digest="",
            level_seed=level,
            sampling_seed=level,
        )
        made = await make_environment(self.config, spec, self.split, environments_of(None))
        env = cast(AsyncEnv, _Watched(made, self._saw))
        runner = make_runner(
            self.config,
            policy=_Waiting(self, env),
            processor=Transcript(),
            sampling=self.config.actor_rollout_ref.rollout.val_kwargs,
        )
        self._images = runner.images

        async def episode() -> Trajectory:
            try:
                return await runner.run(spec, env)
            finally:
                await env.close()

        self._task = asyncio.create_task(episode())
        return await self._until_asked()

    async def play(self, answer: str, by: str) -> Shown:
        """Gives an answer; returns what is seen then."""
        _ = self.asked
        self._by, self._now = by, None
        self._given.put_nowait(answer)
        return await self._until_asked()

    def save(self, folder: Path) -> Path:
        """Writes the episode as a batch with its page, for `vagen view`; returns the page.

        Raises:
            GameError: It has not ended.
        """
        if self.finished is None:
            raise GameError("the episode has not ended: only whole episodes are saved")
        players = {step.by for step in self.shown.steps} if self.shown else set()
        batch = TrajectoryBatch(
            trajectories=[self.finished],
            images={name: self._images[name] for name in self.finished.frames},
            policy_version=", ".join(sorted(players)),
            config_digest=config_digest(self.config),
            kind="evaluation",
            iteration=0,
            metrics={},
        )
        batch.save(folder)
        page = folder.with_suffix(".html")
        title = f"{self.config_id}, level {self.finished.seed}"
        return write_report(batch, page, title=title, tokenizer=Transcript().tokenizer)

    async def close(self) -> None:
        """Ends an episode that is under way."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _until_asked(self) -> Shown:
        assert self._task is not None and self.shown is not None
        waiting = asyncio.ensure_future(self._asked.get())
        await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            self._now = waiting.result()
            return self.shown
        waiting.cancel()
        played = self._task.result()
        self.shown.done, self.shown.success = True, played.success
        if played.status is Status.ENV_ERROR:
            self.shown.error = played.error or "the environment failed"
        else:
            self.finished = played
        return self.shown

    def _saw(self, observation: dict[str, Any], info: dict[str, Any], answer: str | None) -> None:
        """Notes what an environment shows at its start, or after an answer."""
        assert self.shown is not None
        truth = truth_of(self.about, info["state"])
        if answer is not None:
            parsed, rewards = info["parsed"], info["rewards"]
            texts = {name: parsed[name] for name in _SECTIONS if parsed.get(name)}
            self.shown.steps.append(
                Step(
                    by=self._by,
                    answer=answer,
                    sections=texts,
                    actions=[*parsed.get("actions", ())],
                    reward=rewards["env"] + rewards["format"],
                    format_correct=parsed["format_correct"],
                    effective=info["metrics"]["action_is_effective"],
                    truth=truth,
                )
            )
        self.shown = replace(
            self.shown,
            turn=len(self.shown.steps),
            text=observation["text"],
            frames=[png_bytes(frame) for frame in observation["images"]],
            truth=truth,
            score=sum(step.reward for step in self.shown.steps),
        )


_SECTIONS = ("observation", "reasoning", "prediction", "answer")


class GameError(ValueError):
    """It cannot be done now."""


class _Watched:
    """An environment that tells what it shows, wherever it runs."""

    def __init__(self, env: AsyncEnv, saw: Callable[..., None]) -> None:
        self._env, self._saw = env, saw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    async def reset(self, **given: Any) -> Any:
        observation, info = await self._env.reset(**given)
        self._saw(observation, info, None)
        return observation, info

    async def step(self, response: str) -> Any:
        found = await self._env.step(response)
        self._saw(found[0], found[-1], response)
        return found


class _Waiting:
    """A policy that waits for an answer."""

    def __init__(self, game: Game, env: AsyncEnv) -> None:
        self.game, self.env = game, env

    async def generate(
        self, *, request_id: str, prompt_ids: list[int], images: list[Image], sampling: Sampling
    ) -> Generation:
        messages = Transcript().messages(prompt_ids, images)
        self.game._asked.put_nowait(Asked(messages, sampling, self.env))
        answer = await self.game._given.get()
        ids = [*Transcript().ids(answer), Transcript().eos_id]
        return Generation(ids, [0.0] * len(ids), "stop")

    def release(self, request_id: str) -> None:
        pass
