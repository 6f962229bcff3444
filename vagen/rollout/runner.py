"""One coroutine per trajectory: environment and policy take turns.

A slow episode never holds the others back: whoever waits for tokens or for an environment leaves
the event loop to the rest.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from vagen.envs.base import Observation, State
from vagen.envs.parsing import ParsedResponse
from vagen.rollout.contexts import SUMMARY_REQUEST, Contexts, Prompt
from vagen.rollout.conversation import ChatRenderer, RenderError
from vagen.rollout.types import (
    EarlierGeneration,
    Policy,
    Sampling,
    Status,
    Trajectory,
    Turn,
    TurnMetrics,
    TurnRewards,
    Verdict,
)
from vagen.service import AsyncEnv, EnvironmentLost, EnvironmentRaised

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """Which episode to run."""

    trajectory_id: str
    group_id: str
    config_id: str
    env_name: str
    env_config_digest: str
    level_seed: int
    sampling_seed: int
    answers: tuple[EarlierGeneration, ...] = ()
    """Of its first turns, sampled in earlier iterations: they are given again for as long as the
    environment shows what they answered to."""
    max_turns: int | None = None
    """Where fewer are wanted than `EpisodeLimits` allows."""


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Budgets of an episode."""

    max_turns: int
    max_prompt_length: int
    """Tokens of the system prompt and the first observation of a row."""
    max_response_length: int
    max_trajectory_length: int
    """Tokens of a row."""
    window: int | None = None
    """Turns in a prompt, the present one included; None keeps all of them."""
    compact: bool = False
    """Turns that would leave the window are summed up by the policy."""
    gate: bool = False
    """Observations that the policy drops leave the context, after `window` turns at the least."""
    whole_turns: bool = False
    """A turn is begun only if a whole answer has room."""

    @property
    def room(self) -> int:
        """Tokens that there must be room for when a turn begins, that of its end included."""
        return self.max_response_length + 1 if self.whole_turns else MIN_NEW_TOKENS


MIN_NEW_TOKENS = 8
"""A turn that has room for fewer tokens than this is not begun."""


class EpisodeRunner:
    """Runs episodes of any environment with any policy."""

    def __init__(
        self,
        *,
        policy: Policy,
        renderer: ChatRenderer,
        limits: EpisodeLimits,
        sampling: Sampling,
        frame_digest: Callable[[Any], tuple[str, bytes]],
        stopped: Callable[[], bool] = lambda: False,
    ):
        """Prepares a runner.

        Args:
            policy: Continues prompts.
            renderer: Renders for the policy's model.
            limits: Turn and token budgets.
            sampling: Options; `seed` and `max_new_tokens` are set per turn.
            frame_digest: Gives SHA-256 and PNG bytes of a frame.
            stopped: Asked before every turn: whether the episode stays as it is, unfinished.
        """
        self.policy = policy
        self.renderer = renderer
        self.limits = limits
        self.sampling = sampling
        self.frame_digest = frame_digest
        self.stopped = stopped
        self.images: dict[str, bytes] = {}
        """PNG bytes of every frame shown, by digest."""

    async def run(self, spec: EpisodeSpec, env: AsyncEnv) -> Trajectory:
        """Runs one episode to its end, or until it is stopped.

        Raises:
            RenderError: The first prompt is longer than `max_prompt_length`, or the model cannot
                read what the environment shows. (A later row that does not fit its budgets ends
                the episode as truncated.)
        """
        try:
            observation, info = await env.reset(seed=spec.level_seed)
            level_hash, state = info["level_hash"], info["state"]
            system_prompt = env.system_prompt()
        except Exception as error:  # an environment may fail in any way; the batch goes on
            return _unusable(spec, Status.ENV_ERROR, error=EnvironmentFailure.of(error))
        contexts = Contexts(
            spec.trajectory_id,
            self.renderer,
            system_prompt=system_prompt,
            window=self.limits.window,
            compact=self.limits.compact,
            gate=self.limits.gate,
        )
        turns: list[Turn] = []
        given = deque(spec.answers)
        most = spec.max_turns or self.limits.max_turns
        played = 0
        terminated = truncated = success = False
        status = Status.OK
        try:
            while not terminated:
                observation = self.renderer.fitted(observation)
                summing_up = contexts.summary_due and not truncated
                prompt = contexts.prompt(SUMMARY_REQUEST if summing_up else observation)
                if not turns:
                    self._check_first(prompt, spec.env_name)
                elif not self._fits(prompt, 0 if truncated else self.limits.room):
                    if not truncated:
                        truncated, status = True, Status.TRUNCATED_TOKENS
                    break
                frames = self._show(contexts, prompt)
                if truncated:
                    break
                if self.stopped():
                    status = Status.UNFINISHED
                    break
                response, turn = await self._answer(
                    spec, contexts, prompt.observation, frames, given
                )
                if summing_up:
                    turns.append(turn(state=state, **_summary(state)))
                    continue
                try:
                    observation, _, terminated, truncated, info = await env.step(response)
                    turns.append(turn(state=state, **_outcome(info)))
                except Exception as error:  # an environment may fail in any way; the batch goes on
                    raise EnvironmentFailure.of(error) from error
                if self.limits.gate and turns[-1].parsed.memory == "drop":
                    contexts.drop()
                success, state = bool(info["success"]), info["state"]
                played += 1
                truncated = truncated or (played >= most and not terminated)
        except EnvironmentFailure as failure:
            return _unusable(spec, Status.ENV_ERROR, contexts, turns, level_hash, failure)
        finally:
            self.policy.release(contexts.request_id)
        return _trajectory(
            spec,
            level_hash=level_hash,
            terminated=terminated,
            truncated=truncated,
            success=success,
            status=status,
            score=float(sum(t.rewards.env + t.rewards.format for t in turns)),
            turns=turns,
            rows=[row.row() for row in contexts.rows],
        )

    async def _answer(
        self,
        spec: EpisodeSpec,
        contexts: Contexts,
        observation: Observation,
        frames: list[str],
        given: deque[EarlierGeneration],
    ) -> tuple[str, Callable[..., Turn]]:
        """The policy's answer to what it is shown: its text, and the turn but for what it does."""
        index, row = contexts.turns, contexts.row
        # One token is kept for the end of the turn, should the model not sample it.
        room = self.limits.max_trajectory_length - len(row.ids) - 1
        if given and (given[0].observation_text, given[0].images) != (observation["text"], frames):
            given.clear()  # the environment goes another way this time
        answer = given.popleft() if given else None
        generation = answer or await self.policy.generate(
            request_id=contexts.request_id,
            prompt_ids=row.ids,
            images=row.images,
            sampling=replace(
                self.sampling,
                seed=turn_seed(spec.sampling_seed, index),
                max_new_tokens=min(self.limits.max_response_length, room),
            ),
        )
        length_cut = generation.stop_reason == "length"
        eos = self.renderer.processor.eos_id
        contexts.answer(generation.ids, generation.logprobs, [eos] if length_cut else [])
        text_ids = [token for token in generation.ids if token != eos]
        response = self.renderer.tokenizer.decode(text_ids, skip_special_tokens=True)
        return response, partial(
            Turn,
            trajectory_id=spec.trajectory_id,
            turn_index=index,
            response_text=response,
            length_cut=length_cut,
            observation_text=observation["text"],
            images=frames,
            policy_version=answer.policy_version if answer else None,
            verdict=Verdict.from_dict(answer.verdict) if answer and answer.verdict else None,
        )

    def _check_first(self, prompt: Prompt, env_name: str) -> None:
        if prompt.beginning > self.limits.max_prompt_length:
            raise RenderError(
                f"the first prompt of {env_name} takes {prompt.beginning} tokens, more than "
                f"data.max_prompt_length={self.limits.max_prompt_length}: raise it, or use a "
                "shorter prompt_detail"
            )

    def _fits(self, prompt: Prompt, answer: int) -> bool:
        """Whether the row holds the prompt and an answer of so many tokens."""
        return (
            prompt.beginning <= self.limits.max_prompt_length
            and len(prompt.row.ids) + answer <= self.limits.max_trajectory_length
        )

    def _show(self, contexts: Contexts, prompt: Prompt) -> list[str]:
        """Makes a prompt what the policy sees next; returns its observation's frames' digests."""
        digests = []
        for frame in prompt.observation["images"]:
            digest, png = self.frame_digest(frame)
            self.images[digest] = png
            digests.append(digest)
        if prompt.restarts and contexts.rows:
            self.policy.release(contexts.request_id)
        contexts.show(prompt, digests)
        return digests


async def run_episodes(
    runner: EpisodeRunner,
    specs: Sequence[EpisodeSpec],
    make_env: Callable[[EpisodeSpec], Awaitable[AsyncEnv]],
    *,
    max_concurrency: int,
    on_finish: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Runs all episodes, at most `max_concurrency` side by side; results as `specs` are ordered.

    An environment that cannot be made ends its episode alone, as one that fails later does.
    """
    gate = asyncio.Semaphore(max_concurrency)

    async def one(spec: EpisodeSpec) -> Trajectory:
        async with gate:
            trajectory = await run_episode(runner, spec, make_env)
        if on_finish is not None:
            on_finish(trajectory)
        return trajectory

    tasks: list[Awaitable[Trajectory]] = [asyncio.ensure_future(one(spec)) for spec in specs]
    return list(await asyncio.gather(*tasks))


async def run_episode(
    runner: EpisodeRunner,
    spec: EpisodeSpec,
    make_env: Callable[[EpisodeSpec], Awaitable[AsyncEnv]],
) -> Trajectory:
    """Makes an episode's environment, runs the episode and lets the environment go."""
    if runner.stopped():
        return _unusable(spec, Status.UNFINISHED)
    try:
        env = await make_env(spec)
    except (EnvironmentLost, EnvironmentRaised) as error:
        return _unusable(spec, Status.ENV_ERROR, error=EnvironmentFailure.of(error))
    try:
        return await runner.run(spec, env)
    finally:
        await env.close()


def run_to_end(coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
    """`asyncio.run`, with the result handed over beside the task.

    `asyncio.run` restores the signal handler by a call that makes the `repr` of the finished task,
    result included: a batch of trajectories would be printed for nothing.
    """
    box: list[ResultT] = []

    async def main() -> None:
        box.append(await coroutine)

    asyncio.run(main())
    return box[0]


def turn_seed(sampling_seed: int, turn_index: int) -> int:
    """Seed of one turn's draws: a 63-bit digest, the same in every process."""
    return derive_seed(sampling_seed, turn_index)


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that is a function of its parts alone."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class EnvironmentFailure(RuntimeError):
    """The environment raised; its episode is masked from training and counted."""

    @classmethod
    def of(cls, error: Exception) -> "EnvironmentFailure":
        """A failure that says what the environment raised."""
        return cls(str(EnvironmentRaised.of(error)))


def _outcome(info: dict[str, Any]) -> dict[str, Any]:
    """Of a turn, what the environment says of it."""
    return {
        "parsed": ParsedResponse.from_dict(info["parsed"]),
        "rewards": TurnRewards(env=info["rewards"]["env"], format=info["rewards"]["format"]),
        "metrics": TurnMetrics(**info["metrics"]),
        "next_state": info["state"],
    }


def _summary(state: State) -> dict[str, Any]:
    """The same of a summary: it does nothing and earns nothing."""
    return {
        "parsed": ParsedResponse(format_correct=False),
        "rewards": TurnRewards(env=0.0, format=0.0),
        "metrics": TurnMetrics(action_is_valid=False, action_is_effective=False),
        "next_state": state,
        "summary": True,
    }


def _unusable(
    spec: EpisodeSpec,
    status: Status,
    contexts: Contexts | None = None,
    turns: Sequence[Turn] = (),
    level_hash: str = "",
    error: EnvironmentFailure | None = None,
) -> Trajectory:
    """The episode without training signal; without a row if it did not even begin."""
    rows = [] if contexts is None else [row.row() for row in contexts.rows]
    for row in rows:
        row.loss_mask[:] = False
        row.rollout_logprobs[:] = 0
    return _trajectory(
        spec,
        level_hash=level_hash,
        terminated=False,
        truncated=False,
        success=False,
        status=status,
        score=0.0,
        turns=list(turns),
        rows=rows,
        error=None if error is None else str(error),
    )


def _trajectory(spec: EpisodeSpec, **outcome: Any) -> Trajectory:
    """The trajectory of an episode: what was to be played, and how it went."""
    return Trajectory(
        trajectory_id=spec.trajectory_id,
        group_id=spec.group_id,
        config_id=spec.config_id,
        env_name=spec.env_name,
        env_config_digest=spec.env_config_digest,
        seed=spec.level_seed,
        **outcome,
    )
