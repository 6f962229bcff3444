"""Policies besides models with local weights: hosted models and scripts."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from vagen.clients import Client, NoAnswerError
from vagen.clients.chat import Body, Chat, ChatReply, TokenUsage, tokens_of
from vagen.clients.vendors import Hosted
from vagen.config.base import ConfigError
from vagen.config.errors import validate
from vagen.config.evaluation_options import EndpointConfig
from vagen.config.schema import ExperimentConfig
from vagen.envs.registry import get_environment
from vagen.evaluation.journal import Journal, Key, prompt_digest
from vagen.evaluation.prices import Budget, Price
from vagen.evaluation.transcript import Transcript
from vagen.rollout.scripted import play_scripted
from vagen.rollout.types import Generation, Sampling, Trajectory
from vagen.service import Environments

SCRIPTED = {
    "expert": "the environment's own expert",
    "random": "some answer of the expert's, at random",
    "blind": "the one answer that wins most when it is always given",
}
"""Policies by name, with a description."""
LEVELS = 32
"""Number of training levels for the answers of `random` and `blind`."""
CANDIDATES = 12
"""Number of frequent expert answers that `blind` chooses from."""


class EndpointFailure(Exception):
    """The endpoint had no answer; the episode does not count as the model's failure."""


@dataclass
class HostedPolicy:
    """A hosted model; reuses answers in the journal."""

    environment: str
    """Name in the evaluation."""
    spec: str
    """The model's specification."""
    chat: Chat
    make_body: Callable[[Sequence[dict[str, Any]], Sampling], Body]
    """Creates a request from messages and sampling options."""
    journal: Journal
    budget: Budget
    price: Price | None
    """Price of the model; None if unknown."""
    transcript: Transcript = field(default_factory=Transcript)
    forms: Counter[str] = field(default_factory=Counter)
    """Number of answers by form (`ChatReply.form`)."""
    reasoned: int = 0
    """Number of answers with separate reasoning."""
    tokens: TokenUsage = field(default_factory=TokenUsage)
    """Tokens of all answers, including those from the journal."""
    _turns: Counter[str] = field(default_factory=Counter)
    _scale: float | None = None
    """Largest ratio of actual to estimated prompt tokens so far."""

    async def generate(
        self, *, request_id: str, prompt_ids: list[int], images: list[Any], sampling: Sampling
    ) -> Generation:
        """See `Policy`; ids are of a `Transcript`, log-probabilities are 0.

        Raises:
            EndpointFailure: The endpoint has no answer.
            BudgetExceeded: The budget is spent.
        """
        body = self.make_body(self.transcript.messages(prompt_ids, images), sampling)
        episode, _, _ = request_id.rpartition("/")
        turn, self._turns[episode] = self._turns[episode], self._turns[episode] + 1
        key = Key(self.environment, episode, turn, self.spec, prompt_digest(body))
        found = self.journal.get(key)
        if found is None:
            found = await self._ask(key, body)
        if isinstance(found, str):
            raise EndpointFailure(found)
        self.forms[found.form] += 1
        self.reasoned += bool(found.reasoning)
        self.tokens += found.tokens
        self._learn(body, found)
        ids = self.transcript.ids(found.text)
        cut = found.finish == "length"
        if not cut:
            ids.append(self.transcript.eos_id)
        return Generation(ids, [0.0] * len(ids), "length" if cut else "stop")

    def release(self, request_id: str) -> None:
        """Does nothing."""

    def _learn(self, body: Body, reply: ChatReply) -> None:
        if reply.tokens.input:
            share = reply.tokens.input / _prompt_tokens(body)
            self._scale = max(self._scale or 0.0, share)

    async def _ask(self, key: Key, body: Body) -> ChatReply | str:
        def most() -> TokenUsage:
            scale = 1.0 if self._scale is None else _MARGIN * self._scale
            return TokenUsage(input=round(_prompt_tokens(body) * scale), output=_longest(body))

        reservation = await self.budget.reserve(most, self.price)
        start = time.monotonic()
        try:
            reply = await self.chat.reply(body)
            self._learn(body, reply)
            self.budget.add(reply.tokens, self.price)
        except NoAnswerError as error:
            self.journal.put_failure(key, str(error), time.monotonic() - start)
            return str(error)
        finally:
            self.budget.settle(reservation)
        self.journal.put(key, reply, time.monotonic() - start)
        return reply


_MARGIN = 1.2
"""Margin for prompts with a larger ratio of actual to estimated tokens."""


def _prompt_tokens(body: Body) -> float:
    return tokens_of(body) - _longest(body)


def _longest(body: Body) -> int:
    return int(body.get("max_tokens") or body.get("max_completion_tokens") or 0)


@dataclass
class ScriptedPolicy:
    """Returns fixed answers, each drawn with the turn's seed."""

    answers: Mapping[str, Sequence[str]]
    """Possible answers by environment id."""
    config_of: Mapping[str, str]
    """Environment ids by trajectory."""
    transcript: Transcript = field(default_factory=Transcript)

    async def generate(
        self, *, request_id: str, prompt_ids: list[int], images: list[Any], sampling: Sampling
    ) -> Generation:
        """See `Policy`; ids are of a `Transcript`, log-probabilities are 0."""
        episode, _, _ = request_id.rpartition("/")
        said = Random(sampling.seed).choice(self.answers[self.config_of[episode]])
        ids = [*self.transcript.ids(said), self.transcript.eos_id]
        return Generation(ids, [0.0] * len(ids), "stop")

    def release(self, request_id: str) -> None:
        """Does nothing."""


def scripted_answers(
    config: ExperimentConfig, places: Environments, *, blind: bool
) -> dict[str, list[str]]:
    """Answers of `random`, or the constant answer of `blind`, by environment.

    Both come from training levels: `random` draws from all answers of the expert; `blind` is the
    one of its most frequent answers with the highest success, then the highest reward.

    Raises:
        ConfigError: An environment has no expert.
    """
    found = {}
    for config_id, spec in config.envs.items():
        check_expert(spec.env_name)
        env = places.open(spec.env_name, spec.env_config)

        def play(text: str | None, env: Any = env, config_id: str = config_id) -> list[Trajectory]:
            return [
                play_scripted(
                    env,
                    lambda env, _: env.expert_response() if text is None else text,
                    config_id=config_id,
                    env_name=config.envs[config_id].env_name,
                    seed=seed,
                    max_turns=config.rollout_manager.max_turns,
                )
                for seed in range(LEVELS)
            ]

        try:
            said = [turn.response_text for t in play(None) for turn in t.turns]
            if blind:
                texts = [text for text, _ in Counter(said).most_common(CANDIDATES)]
                said = [max(texts, key=lambda text: _rank(play(text)))]
        finally:
            env.close()
        found[config_id] = said
    return found


def check_expert(env_name: str) -> None:
    """Checks that an environment has an expert.

    Raises:
        ConfigError: It has no expert.
    """
    if not get_environment(env_name).load().has_expert:
        raise ConfigError(
            f"{env_name} has no expert, so that there is no expert, random or blind row: leave "
            "these models out"
        )


def _rank(episodes: Sequence[Trajectory]) -> tuple[int, float]:
    return sum(t.success for t in episodes), sum(t.score for t in episodes)


def endpoint_options(common: EndpointConfig, own: dict[str, Any], label: str) -> EndpointConfig:
    """The options of one model: its own override the common ones."""
    place = f"models: endpoint of {label}"
    return validate(EndpointConfig, common.model_dump() | own, lambda _: place)


def open_chat(hosted: Hosted, options: EndpointConfig) -> Chat:
    """A client of a hosted model.

    Raises:
        EndpointError: Its key's environment variable is not set, or its library is not installed.
    """
    return hosted.chat(
        Client(options), "eval.endpoint", api_key_env=options.api_key_env, headers=options.headers
    )
