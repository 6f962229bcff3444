"""Runs each trajectory as a coroutine, in which environment and policy alternate.

A slow episode does not block others: coroutines yield while they wait for tokens or environments.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from vagen.envs.base import Observation, State
from vagen.envs.parsing import ParsedResponse
from vagen.rollout.contexts import SUMMARY_REQUEST, Contexts, Prompt
from vagen.rollout.conversation import ChatRenderer, RenderError
from vagen.rollout.thoughts import without_thought
from vagen.rollout.types import (
    EarlierGeneration,
    Generation,
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
    """Specification of an episode."""

    trajectory_id: str
    group_id: str
    config_id: str
    env_name: str
    env_config_digest: str
    level_seed: int
    sampling_seed: int
    answers: tuple[EarlierGeneration, ...] = ()
    """Responses of its first turns from earlier iterations, replayed while the environment shows
    the same observations."""
    max_turns: int | None = None
    """Limit of turns, if lower than that of `EpisodeLimits`."""


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Limits of an episode."""

    max_turns: int
    max_prompt_length: int
    """Tokens of the system prompt and the first observation of a row."""
    max_response_length: int
    max_trajectory_length: int
    """Tokens of a row."""
    window: int | None = None
    """Maximum number of turns in a prompt, with the current one; None for all."""
    compact: bool = False
    """Whether the policy summarises turns that would leave the window."""
    compact_budget: int | None = None
    """Tokens of a row that it summarises earlier; see `Contexts`."""
    gate: bool = False
    """Whether dropped observations leave the context, after at least `window` turns."""
    whole_turns: bool = False
    """Whether a turn starts only if a response of maximum length fits."""
    thinking_budget: int | None = None
    """Sampled tokens after which the thought of a response is closed; None for no limit."""

    @property
    def room(self) -> int:
        """Tokens that must be free when a turn starts, including its end."""
        return self.max_response_length + 1 if self.whole_turns else MIN_NEW_TOKENS


MIN_NEW_TOKENS = 8
"""Minimum number of free tokens to start a turn."""


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
        hides_thought: Collection[str] = (),
    ):
        """Prepares a runner.

        Args:
            policy: Generates the responses.
            renderer: Renders for the policy's model.
            limits: Turn and token limits.
            sampling: Options; `seed` and `max_new_tokens` are set per turn.
            frame_digest: Returns SHA-256 and PNG bytes of a frame.
            stopped: Called before every turn; True stops the episode unfinished.
            hides_thought: Ids of configurations whose environments get responses without the
                thoughts that the chat template knows.
        """
        self.policy = policy
        self.renderer = renderer
        self.limits = limits
        self.sampling = sampling
        self.frame_digest = frame_digest
        self.stopped = stopped
        self.hides_thought = hides_thought
        self.images: dict[str, bytes] = {}
        """PNG bytes of all frames, by digest."""

    async def run(self, spec: EpisodeSpec, env: AsyncEnv) -> Trajectory:
        """Runs one episode until it ends or is stopped.

        Raises:
            RenderError: The first prompt is longer than `max_prompt_length`, or the model cannot
                read the observation. (A later row that exceeds its limits truncates the episode.)
        """
        try:
            observation, info = await env.reset(seed=spec.level_seed)
            level_hash, state = info["level_hash"], info["state"]
            system_prompt = env.system_prompt()
        except Exception as error:  # any failure of an environment
            return _unusable(spec, Status.ENV_ERROR, error=EnvironmentFailure.of(error))
        contexts = Contexts(
            spec.trajectory_id,
            self.renderer,
            system_prompt=system_prompt,
            window=self.limits.window,
            compact=self.limits.compact,
            compact_budget=self.limits.compact_budget,
            gate=self.limits.gate,
        )
        turns: list[Turn] = []
        given = deque(spec.answers)
        max_turns = spec.max_turns or self.limits.max_turns
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
                    if placed := info.get("placed"):
                        hidden = len(turns[-1].response_text) - len(response)
                        turns[-1].placed = [(end + hidden, amount) for end, amount in placed]
                except Exception as error:  # any failure of an environment
                    raise EnvironmentFailure.of(error) from error
                if self.limits.gate and turns[-1].parsed.memory == "drop":
                    contexts.drop()
                success, state = bool(info["success"]), info["state"]
                played += 1
                truncated = truncated or (played >= max_turns and not terminated)
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
        """The policy's response: its text for the environment, and a partial `Turn`."""
        index, thoughts = contexts.turns, self.renderer.thoughts
        if given and (given[0].observation_text, given[0].images) != (observation["text"], frames):
            given.clear()  # the environment diverges from the replay
        answer = given.popleft() if given else None
        generation = answer or await self._generate(contexts, spec.sampling_seed)
        ids, logprobs = generation.ids, generation.logprobs
        length_cut = generation.stop_reason == "length"
        eos = self.renderer.processor.eos_id
        contexts.answer(ids, logprobs, [eos] if length_cut else [])
        response = self.renderer.text(ids)
        length = None if thoughts is None else thoughts.length(ids)
        hidden = thoughts is not None and spec.config_id in self.hides_thought
        return without_thought(response) if hidden else response, partial(
            Turn,
            trajectory_id=spec.trajectory_id,
            turn_index=index,
            response_text=response,
            length_cut=length_cut,
            observation_text=observation["text"],
            images=frames,
            policy_version=answer.policy_version if answer else None,
            verdict=Verdict.from_dict(answer.verdict) if answer and answer.verdict else None,
            thought_length=None if length is None else length - [*logprobs[:length]].count(None),
            thought_cut=None in logprobs,
        )

    async def _generate(self, contexts: Contexts, seed: int) -> Generation:
        """The policy's response to the current row, with its thought closed by the budget."""
        row, index, budget = contexts.row, contexts.turns, self.limits.thinking_budget
        # Reserves one token for the end of the turn in case the model does not sample it.
        room = self.limits.max_trajectory_length - len(row.ids) - 1
        most = min(self.limits.max_response_length, room)

        async def sample(begun: list[int], seed: int, tokens: int) -> Generation:
            return await self.policy.generate(
                request_id=contexts.request_id,
                prompt_ids=[*row.ids, *begun],
                images=row.images,
                sampling=replace(self.sampling, seed=seed, max_new_tokens=tokens),
            )

        thoughts = self.renderer.thoughts
        if thoughts is None or budget is None or budget >= most:
            return await sample([], turn_seed(seed, index), most)
        first = await sample([], turn_seed(seed, index), budget)
        closing = thoughts.closing_ids if thoughts.is_open(first.ids) else []
        left = most - len(first.ids) - len(closing)
        if first.stop_reason == "stop" or left < 1:
            return first
        begun = [*first.ids, *closing]
        then = await sample(begun, derive_seed(seed, index, "answer"), left)
        logprobs = [*first.logprobs, *[None] * len(closing), *then.logprobs]
        return Generation([*begun, *then.ids], logprobs, then.stop_reason)

    def _check_first(self, prompt: Prompt, env_name: str) -> None:
        if prompt.beginning > self.limits.max_prompt_length:
            raise RenderError(
                f"the first prompt of {env_name} takes {prompt.beginning} tokens, more than "
                f"data.max_prompt_length={self.limits.max_prompt_length}: raise it, or use a "
                "shorter prompt_detail"
            )

    def _fits(self, prompt: Prompt, answer: int) -> bool:
        """Whether the prompt and a response of this many tokens fit into the row."""
        return (
            prompt.beginning <= self.limits.max_prompt_length
            and len(prompt.row.ids) + answer <= self.limits.max_trajectory_length
        )

    def _show(self, contexts: Contexts, prompt: Prompt) -> list[str]:
        """Makes a prompt the policy's context; returns the digests of its observation's frames."""
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
    """Runs all episodes, at most `max_concurrency` at a time; results in the order of `specs`.

    If an environment cannot be created, only its episode fails.
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
    runner: EpisodeRunner, spec: EpisodeSpec, make_env: Callable[[EpisodeSpec], Awaitable[AsyncEnv]]
) -> Trajectory:
    """Creates an episode's environment, runs the episode and closes the environment."""
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
    """`asyncio.run`, but with the result outside the task.

    `asyncio.run` restores the signal handler in a way that computes the `repr` of the finished task
    with its result, which is slow for a batch of trajectories.
    """
    box: list[ResultT] = []

    async def main() -> None:
        box.append(await coroutine)

    asyncio.run(main())
    return box[0]


def turn_seed(sampling_seed: int, turn_index: int) -> int:
    """Sampling seed of one turn: a 63-bit digest, equal in every process."""
    return derive_seed(sampling_seed, turn_index)


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends only on its parts."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class EnvironmentFailure(RuntimeError):
    """The environment raised an error; the episode is masked from training and counted."""

    @classmethod
    def of(cls, error: Exception) -> "EnvironmentFailure":
        """A failure with the environment's error message."""
        return cls(str(EnvironmentRaised.of(error)))


def _outcome(info: dict[str, Any]) -> dict[str, Any]:
    """The environment's part of a turn."""
    return {
        "parsed": ParsedResponse.from_dict(info["parsed"]),
        "rewards": TurnRewards(env=info["rewards"]["env"], format=info["rewards"]["format"]),
        "metrics": TurnMetrics(**info["metrics"]),
        "next_state": info["state"],
    }


def _summary(state: State) -> dict[str, Any]:
    """Like `_outcome`, for a summary, which has no action and no reward."""
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
    """An episode without training signal; it has no row if it failed before the first."""
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
    """The trajectory of an episode, from its specification and results."""
    return Trajectory(
        trajectory_id=spec.trajectory_id,
        group_id=spec.group_id,
        config_id=spec.config_id,
        env_name=spec.env_name,
        env_config_digest=spec.env_config_digest,
        seed=spec.level_seed,
        **outcome,
    )
