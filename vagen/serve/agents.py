"""A run's agent as a service: observations in, actions out.

A session is an episode of `EpisodeRunner`, whose environment is the client. Prompts, contexts,
limits of tokens and the parser are therefore those of training and evaluation.
"""

import asyncio
import math
import secrets
import time
from collections.abc import Callable
from typing import Annotated, Any, cast

import numpy as np
from PIL.Image import Image
from pydantic import AfterValidator, Field, NonNegativeInt

from vagen.config.base import ConfigError, Section
from vagen.config.errors import unknown_name
from vagen.config.schema import ExperimentConfig
from vagen.envs import make
from vagen.envs.base import IMAGE_PLACEHOLDER, Observation
from vagen.envs.parsing import ParsedResponse
from vagen.envs.turns import TurnEnv
from vagen.rollout.conversation import Conversation
from vagen.rollout.play import make_runner
from vagen.rollout.runner import EpisodeRunner, EpisodeSpec
from vagen.rollout.types import Generation, Sampling, Trajectory
from vagen.serve.messages import RequestError, decode
from vagen.serve.model import ServedModel, frame_digest
from vagen.service import AsyncEnv
from vagen.service.base import EnvStep
from vagen.service.wire import replace_surrogates

ENDLESS = 1 << 30
"""Turns of a session: the client ends it."""


class ObservationPart(Section):
    """An observation."""

    text: Annotated[str, AfterValidator(replace_surrogates)] = ""
    """Text with `<image>` once per picture; without any, the pictures come first."""
    images: tuple[str, ...] = ()
    """Pictures as data URLs."""

    def read(self) -> Observation:
        """The observation.

        Raises:
            RequestError: A picture cannot be decoded, or the text has another number of them.
        """
        places = self.text.count(IMAGE_PLACEHOLDER)
        if places not in (0, len(self.images)):
            raise RequestError(
                f"the text has {places} times {IMAGE_PLACEHOLDER}, for {len(self.images)} images: "
                "write it once per image, or not at all"
            )
        text = self.text if places else IMAGE_PLACEHOLDER * len(self.images) + self.text
        return {"text": text, "images": tuple(map(decode, self.images))}


class ResetOrder(Section):
    """A session to open."""

    observation: ObservationPart | None = None
    """The first observation, such as an instruction; default: that of the first `act`."""
    env: str | None = None
    """Id of the environment in the experiment, if it has several."""
    temperature: Annotated[float, Field(ge=0.0)] | None = None
    """Default: that of the run's evaluations (`val_kwargs`)."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Default: random."""


class CloseOrder(Section):
    """A session to close."""

    session: str
    success: bool | None = None
    """Whether the agent reached its goal, for the metrics."""


class ActOrder(Section):
    """The next turn of a session."""

    session: str
    observation: ObservationPart | None = None
    """What the last actions led to; none in the first turn if `reset` had it."""
    reward: float | None = None
    """Not used: a policy reads no rewards."""
    retries: Annotated[NonNegativeInt, Field(le=8)] = 0
    """Times that the observation is shown again if a response cannot be parsed."""


class _Policy:
    """The served model as a `Policy`."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    async def generate(
        self, *, request_id: str, prompt_ids: list[int], images: list[Image], sampling: Sampling
    ) -> Generation:
        digests = [frame_digest(np.asarray(image)) for image in images]
        prompt = Conversation(request_id, ids=prompt_ids, images=images, digests=digests)
        generation, _ = await self._model.generate(prompt, sampling)
        return generation

    def release(self, request_id: str) -> None:
        """Does nothing: the model frees its oldest conversations."""


class Session:
    """An episode, and its environment, which is the client; lives in the model's thread."""

    def __init__(self, game: TurnEnv, runner: EpisodeRunner, spec: EpisodeSpec) -> None:
        """Starts the episode, which waits for an observation."""
        self.used = time.monotonic()
        """End of the last turn; infinite during one."""
        self._game = game
        self._pending: Observation | None = None
        self._observations: asyncio.Queue[Observation] = asyncio.Queue()
        self._responses: asyncio.Queue[tuple[str, ParsedResponse]] = asyncio.Queue()
        self._retries = self._turns = 0
        env = cast(AsyncEnv, self)  # of its methods, the runner calls the three that are here
        self._episode: asyncio.Task[Trajectory] = asyncio.ensure_future(runner.run(spec, env))

    def system_prompt(self) -> str:
        """See `AsyncEnv`."""
        return self._game.system_prompt()

    async def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """See `AsyncEnv`."""
        return await self._next(), {"state": {}, "level_hash": ""}

    async def step(self, response: str) -> EnvStep:
        """See `AsyncEnv`."""
        parsed, again = self._game.parse(response), self._shown
        if parsed.format_correct or not self._retries:
            self._responses.put_nowait((response, parsed))
            again = await self._next()
        else:
            self._retries -= 1
        info = {
            "rewards": {"env": 0.0, "format": 0.0},
            "parsed": parsed.to_dict(),
            "metrics": {"action_is_valid": parsed.format_correct, "action_is_effective": True},
            "success": False,
            "state": {},
        }
        return again, 0.0, False, False, info

    async def close(self) -> None:
        """Ends the episode."""
        self._episode.cancel()

    async def _next(self) -> Observation:
        self._shown = await self._observations.get()
        return self._shown

    def begin(self, observation: Observation) -> None:
        """Gives the first observation."""
        self._pending = observation

    async def act(self, observation: Observation | None, retries: int) -> dict[str, Any]:
        """The next actions.

        Raises:
            RequestError: There is no observation, or there are two; another turn is under way; or
                the conversation is full.
            RenderError: The model cannot read it.
        """
        if self.used == math.inf:
            raise RequestError("another turn of this session is under way: wait for it", 409)
        if (observation is None) == (self._pending is None):
            has = "has its observation from reset" if observation else "needs an observation"
            raise RequestError(f"this turn {has}")
        self.used, self._retries = math.inf, retries
        waiting = asyncio.ensure_future(self._responses.get())
        try:
            self._observations.put_nowait(observation or self._pending)  # pyrefly: ignore
            self._pending = None
            await asyncio.wait({waiting, self._episode}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                if self._episode.cancelled():
                    raise RequestError("the session was closed", 404)
                ended = self._episode.result()
                raise RequestError(
                    f"the conversation is full ({ended.error or ended.status}): reset opens "
                    "another session",
                    409,
                )
            text, parsed = waiting.result()
        finally:
            if not waiting.done():  # its response would answer the next turn
                waiting.cancel()
                self._episode.cancel()
            self.used = time.monotonic()
        self._turns += 1
        found = parsed.to_dict()
        return {
            "turn": self._turns,
            "actions": found["actions"],
            "thought": found["reasoning"],
            "observation": found["observation"],
            "prediction": found["prediction"],
            "answer": found["answer"],
            "format_correct": parsed.format_correct,
            "attempts": 1 + retries - self._retries,
            "text": text,
        }


class Agents:
    """Sessions of one run's agent."""

    def __init__(
        self,
        config: ExperimentConfig,
        model: ServedModel,
        *,
        max_sessions: int = 64,
        idle_seconds: float = 1800.0,
        prefix: str = "",
        count: Callable[[str, str], Any] = lambda kind, result: None,
    ):
        """Makes one environment of each kind, for its prompt and its parser.

        Args:
            config: The run's experiment.
            model: The run's policy.
            max_sessions: Maximum number of sessions.
            idle_seconds: Idle time after which a session is closed.
            prefix: Begins the name of every session.
            count: Called with `turns` and `correct`, `invalid_action` or `wrong_layout`; with
                `episodes` and `success`, `failure` or `unknown`.

        Raises:
            ConfigError: An environment has a parser of its own.
        """
        manager = config.rollout_manager.model_copy(update={"max_turns": ENDLESS})
        self._config = config.model_copy(update={"rollout_manager": manager})
        self._model = model
        self._max_sessions, self._idle_seconds = max_sessions, idle_seconds
        self._prefix, self._count = prefix, count
        self._envs: dict[str, TurnEnv] = {}
        for config_id, spec in config.envs.items():
            env = make(spec.env_name, spec.env_config)
            if not isinstance(env, TurnEnv):
                raise ConfigError(f"{spec.env_name} reads responses in `step` alone: no agent")
            self._envs[config_id] = env
        self._sessions: dict[str, Session] = {}

    async def reset(self, order: ResetOrder) -> dict[str, Any]:
        """Opens a session.

        Raises:
            RequestError: There are too many, or there is no such environment.
        """
        await self._sweep()
        if len(self._sessions) >= self._max_sessions:
            raise RequestError(f"{len(self._sessions)} sessions are open: close one", 429)
        config_id = order.env or next(iter(self._envs))
        if config_id not in self._envs:
            raise RequestError(unknown_name("environment", config_id, self._envs))
        if order.env is None and len(self._envs) > 1:
            raise RequestError(f"say which environment: env is one of {', '.join(self._envs)}")
        sampling = self._config.actor_rollout_ref.rollout.val_kwargs
        if order.temperature is not None:
            sampling = sampling.model_copy(update={"temperature": order.temperature})
        runner = make_runner(
            self._config,
            policy=_Policy(self._model),
            processor=self._model.processor,
            sampling=sampling,
        )
        key = self._prefix + secrets.token_urlsafe(24)
        seed = secrets.randbits(63) if order.seed is None else order.seed
        env_name = self._config.envs[config_id].env_name
        spec = EpisodeSpec(key, key, config_id, env_name, "", 0, seed)
        session = self._sessions[key] = Session(self._envs[config_id], runner, spec)
        if order.observation is not None:
            session.begin(self._read(order.observation))
        return {"session": key, "system_prompt": session.system_prompt()}

    async def act(self, order: ActOrder) -> dict[str, Any]:
        """The next actions of a session; see `Session.act`."""
        await self._sweep()
        session = self._sessions.get(order.session)
        if session is None:
            raise RequestError("there is no such session: it was closed, or idle for too long", 404)
        observation = None if order.observation is None else self._read(order.observation)
        turn = await session.act(observation, order.retries)
        wrong = "wrong_layout" if turn["answer"] is None else "invalid_action"
        self._count("turns", "correct" if turn["format_correct"] else wrong)
        return turn

    async def close(self, order: CloseOrder) -> dict[str, Any]:
        """Closes a session; ignores closed ones."""
        outcome = {True: "success", False: "failure", None: "unknown"}[order.success]
        await self._end(order.session, outcome)
        return {"session": order.session}

    async def _end(self, key: str, outcome: str) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            self._count("episodes", outcome)
            await session.close()

    def _read(self, part: ObservationPart) -> Observation:
        if part.images and not self._model.processor.has_vision:
            raise RequestError("this agent reads no pictures: send text alone")
        return part.read()

    async def _sweep(self) -> None:
        oldest = time.monotonic() - self._idle_seconds
        for key in [key for key, session in self._sessions.items() if session.used < oldest]:
            await self._end(key, "unknown")
