"""Judges the turns of trajectories as an experiment configures it."""

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from vagen.clients import DEADLINE
from vagen.config.infra import InfraConfig
from vagen.config.judge_options import JudgeConfig, LLMJudgeConfig
from vagen.config.schema import ExperimentConfig
from vagen.envs import parse_env_config
from vagen.judge import AnswerCache, CascadeJudge, ChatClient, Judge, LLMJudge, RuleJudge, rules_for
from vagen.rollout.types import NOTHING, SectionScores, Status, Trajectory, Turn, Verdict
from vagen.service import environments_of

_SIDE_BY_SIDE = 4
"""Number of turns judged concurrently, as a multiple of concurrent requests."""


def cache_folder(infra: InfraConfig) -> Path:
    """Folder of the cache of answers, next to the runs, which share it."""
    if infra.judge_cache:
        return Path(infra.judge_cache).absolute()
    return infra.runs_folder / "judge-cache"


def statements(trajectory: Trajectory, config: JudgeConfig | None = None) -> Iterator[Turn]:
    """Turns whose statements are judged: those with a format reward.

    Args:
        trajectory: An episode; has none if its environment failed.
        config: Its `sampling_fraction` selects turns; None selects all.
    """
    if trajectory.status is not Status.ENV_ERROR:
        fraction = 1.0 if config is None else config.sampling_fraction
        for turn in trajectory.turns:
            if turn.parsed.format_correct and is_chosen(turn, "judged", fraction):
                yield turn


def is_chosen(turn: Turn, purpose: str, fraction: float) -> bool:
    """Whether a turn is in a pseudo-random share of all turns for a purpose."""
    if fraction >= 1.0:
        return True
    place = f"{purpose}/{turn.trajectory_id}/{turn.turn_index}"
    digest = hashlib.sha256(place.encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


class Scorer:
    """Sets verdicts and judge rewards of turns, with one judge per environment.

    Judges share language models and their limits. If there are any, close the scorer or use it in
    `async with`.
    """

    def __init__(self, config: ExperimentConfig, *, cache: Path | None = None, share: int = 1):
        """Prepares the judges.

        Args:
            config: The experiment with resolved environments.
            cache: Folder of the cache of answers; None disables it.
            share: Number of processes that share the endpoints' limits.

        Raises:
            EndpointError: The environment variable of an endpoint's key is not set.
            CacheError: The folder cannot be used.
        """
        self.config = config
        judge = config.judge
        second = judge.model_copy(update={"type": judge.second.type})
        enabled = judge.use_state_reward
        compares = enabled and judge.second.fraction > 0
        self._clients: list[ChatClient] = []
        self.cache: AnswerCache | None = None
        """Cache of answers, if there is a language model."""
        self._folder, self._share = cache, share
        self._judges = self._all(judge, judge.llm, "judge.llm") if enabled else {}
        self._seconds = self._all(second, judge.second.llm, "judge.second.llm") if compares else {}

    async def __aenter__(self) -> "Scorer":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes connections and cache."""
        for client in self._clients:
            await client.close()
        if self.cache is not None:
            self.cache.close()

    @property
    def usage(self) -> dict[str, float]:
        """Usage of language models in this process, as metrics."""
        if not self._clients:
            return {}
        total = [client.usage for client in self._clients]
        return {
            "judge/llm_requests": float(sum(usage.requests for usage in total)),
            "judge/llm_answers": float(sum(usage.answers for usage in total)),
            "judge/llm_failures": float(sum(usage.failures.total() for usage in total)),
            "judge/llm_prompt_tokens": float(sum(usage.prompt_tokens for usage in total)),
            "judge/llm_completion_tokens": float(sum(usage.completion_tokens for usage in total)),
            "judge/llm_breaks": float(sum(client.breaks for client in self._clients)),
        }

    @property
    def performance(self) -> dict[str, float]:
        """Latency metrics of language models; empty without answers."""
        usages = [client.usage for client in self._clients]
        responses = sum(usage.responses for usage in usages)
        seconds = sum(usage.seconds for usage in usages)
        return {"perf/judge/seconds_per_request": seconds / responses} if responses else {}

    async def score(self, trajectory: Trajectory) -> None:
        """Judges turns without a verdict, in place; does nothing without a judge.

        A missing score gives a reward part of None.
        """
        await self.score_all([trajectory])

    async def score_all(
        self, trajectories: list[Trajectory], on_judged: Callable[[], None] = lambda: None
    ) -> None:
        """Judges the statements of a batch concurrently, within the deadline.

        Args:
            trajectories: A batch.
            on_judged: Called after each turn, including already judged ones.
        """
        turns = [
            (trajectory, turn)
            for trajectory in trajectories
            if trajectory.config_id in self._judges
            for turn in statements(trajectory, self.config.judge)
        ]
        if not self._clients:
            for trajectory, turn in turns:
                await self.score_turn(trajectory, turn)
                on_judged()
            return
        endpoints = self.config.judge.endpoints().values()
        gate = asyncio.Semaphore(_SIDE_BY_SIDE * max(llm.concurrency for llm in endpoints))

        async def judged(trajectory: Trajectory, turn: Turn) -> None:
            async with gate:
                await self.score_turn(trajectory, turn)
                on_judged()

        longest = max(llm.deadline for llm in endpoints)
        before = DEADLINE.set(asyncio.get_running_loop().time() + longest)
        try:
            async with asyncio.TaskGroup() as group:
                for trajectory, turn in turns:
                    group.create_task(judged(trajectory, turn))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            DEADLINE.reset(before)

    async def score_turn(self, trajectory: Trajectory, turn: Turn) -> None:
        """Judges one turn if it has no verdict or an absent score."""
        if turn.verdict is None or turn.verdict.absent:
            turn.verdict = await self._verdict(trajectory, turn)
        set_rewards(self.config.judge, turn)

    async def _verdict(self, trajectory: Trajectory, turn: Turn) -> Verdict:
        texts = turn.parsed.observation, turn.parsed.prediction
        states = turn.state, turn.next_state
        verdict = await self._judges[trajectory.config_id].score(*texts, *states)
        judge = self.config.judge
        if self._seconds and is_chosen(turn, "second", judge.second.fraction):
            second = await self._seconds[trajectory.config_id].score(*texts, *states)
            scores = SectionScores(second.observation, second.prediction)
            verdict = replace(verdict, second=scores)
        return verdict

    def _all(self, judge: JudgeConfig, llm: LLMJudgeConfig, key: str) -> dict[str, Judge]:
        """One judge per environment of the experiment, by id."""
        client = None
        if judge.type != "rule":
            client = ChatClient(llm, share=self._share, key=key)
            self._clients.append(client)
            if self.cache is None and self._folder is not None:
                self.cache = AnswerCache(self._folder)
        return {
            name: judge_of(judge, spec.env_name, spec.env_config, client=client, cache=self.cache)
            for name, spec in self.config.envs.items()
        }

    @property
    def readers(self) -> dict[str, RuleJudge]:
        """Rule judges by environment id."""
        found = {name: getattr(judge, "reader", judge) for name, judge in self._judges.items()}
        return {name: judge for name, judge in found.items() if isinstance(judge, RuleJudge)}


def judge_of(
    judge: JudgeConfig,
    env_name: str,
    env_config: dict[str, Any],
    *,
    client: ChatClient | None = None,
    cache: AnswerCache | None = None,
) -> Judge:
    """A judge of one environment with its rules and prompt, and a `client` if it is a model."""
    options = parse_env_config(env_name, env_config)
    env = environments_of().open(env_name, env_config)
    prompt = env.system_prompt() if options.prompt_detail == "full" else None
    env.close()
    rules = rules_for(env_name, options)
    reader = RuleJudge(rules, prompt=prompt, gate=judge.gate)
    if judge.type == "rule":
        return reader
    assert client is not None, "a language model needs a client"
    if judge.type == "llm":
        return LLMJudge(client, env_name, rules, prompt=prompt, cache=cache)
    return CascadeJudge(client, env_name, rules, prompt=prompt, cache=cache, reader=reader)


def set_rewards(
    judge: JudgeConfig, turn: Turn, scale: float = 1.0, blind: SectionScores = NOTHING
) -> None:
    """Sets a judged turn's rewards from its verdict, minus deductions (`vagen.judge.deductions`).

    Args:
        judge: The weights.
        turn: A turn with a verdict.
        scale: Factor on both weights.
        blind: Chance-level scores (`judge.above_chance`).
    """
    assert turn.verdict is not None
    verdict, taken = turn.verdict, turn.verdict.deducted or NOTHING

    def reward(section: str) -> float | None:
        score = getattr(verdict, section)
        if score is None:
            return None
        chance = getattr(blind, section) or 0.0
        earned = max(score - chance, 0.0) / (1.0 - chance) if chance < 1.0 else 0.0
        weight = getattr(judge, f"{section}_weight")
        return scale * weight * (earned - (getattr(taken, section) or 0.0))

    turn.rewards = replace(
        turn.rewards, judge_observation=reward("observation"), judge_prediction=reward("prediction")
    )
