"""The rule judge: parses the agent's statements and compares them with the truth."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vagen.envs.base import State
from vagen.judge.gate import is_far_too_long, same_words, text_flags
from vagen.judge.rules import Reading, Rules
from vagen.rollout.types import Verdict


class RuleJudge:
    """Scores state descriptions by the rules of their environments.

    A text that the gate rejects scores 0 with the flag `<section>:<reason>`. A missing section
    (None), an environment without rules, and a text that is `not_understood` have no score, which
    differs from 0. Readings of texts are cached.
    """

    def __init__(
        self,
        rules: Mapping[str, Rules],
        *,
        max_tokens: int = 200,
        prompts: Mapping[str, str] | None = None,
        cache_size: int = 16_384,
        gate: bool = True,
    ) -> None:
        """Creates a judge.

        Args:
            rules: Rules by environment name.
            max_tokens: Maximum words and marks of a text.
            prompts: System prompts by environment, to reject copied text.
            cache_size: Maximum number of cached readings.
            gate: False rejects nothing and scores recall only (`judge.gate`).
        """
        self._rules = rules
        self._max_tokens = max_tokens
        self._prompts = dict(prompts or {})
        self._gate = gate
        self._read = lru_cache(maxsize=cache_size)(self._read_text)

    async def score(
        self,
        *,
        env_name: str,
        observation: str | None,
        prediction: str | None,
        state: State,
        next_state: State,
    ) -> Verdict:
        """Scores `observation` against `state` and `prediction` against `next_state`."""
        return self.score_sync(
            env_name=env_name,
            observation=observation,
            prediction=prediction,
            state=state,
            next_state=next_state,
        )

    def score_sync(
        self,
        *,
        env_name: str,
        observation: str | None,
        prediction: str | None,
        state: State,
        next_state: State,
    ) -> Verdict:
        """Synchronous `score`."""
        rules = self._rules.get(env_name)
        if rules is None:
            return Verdict(observation=None, prediction=None)
        flags: list[str] = []
        observation_score = prediction_score = None
        if observation is not None:
            truth = rules.truth(state)
            observation_score, reasons = self._judge(env_name, observation, truth)
            flags += [f"observation:{reason}" for reason in reasons]
        if prediction is not None:
            truth = rules.truth(next_state)
            prediction_score, reasons = self._judge(env_name, prediction, truth)
            if (
                observation is not None
                and not reasons
                and self._gate
                and same_words(observation, prediction)
                and rules.has_changed(
                    self._read(env_name, prediction).content, rules.truth(state), truth
                )
            ):
                prediction_score, reasons = 0.0, ("copied_observation",)
            flags += [f"prediction:{reason}" for reason in reasons]
        return Verdict(observation_score, prediction_score, tuple(flags))

    def scores(self, env_name: str, text: str, truths: Sequence[Any]) -> NDArray[np.float64] | None:
        """Scores of one text against many truths (`Rules.truth`), float64 [len(truths)].

        Returns:
            None if the text is not understood.
        """
        reading = self.read(env_name, text)
        if self._gate and not reading.understood and not reading.flags:
            return None
        return np.array([self._compare(env_name, reading, truth)[0] for truth in truths])

    def rules(self, env_name: str) -> Rules | None:
        """The rules of an environment; None if it has none."""
        return self._rules.get(env_name)

    def read(self, env_name: str, text: str) -> Reading:
        """The reading of a text; with the reasons in `flags` if it is `rejected`.

        Raises:
            KeyError: The environment has no rules.
        """
        if is_far_too_long(text, self._max_tokens):
            return Reading((), ("too_long",), rejected=True)
        return self._read(env_name, text)

    def _judge(self, env_name: str, text: str, truth: Any) -> tuple[float | None, tuple[str, ...]]:
        """Score and flags; no score if the text is not understood."""
        return self._compare(env_name, self.read(env_name, text), truth)

    def _compare(
        self, env_name: str, reading: Reading, truth: Any
    ) -> tuple[float | None, tuple[str, ...]]:
        if not self._gate:
            return self._rules[env_name].recall(reading.content, truth), ()
        if reading.flags:
            return 0.0, reading.flags
        if not reading.understood:
            return None, ("not_understood",)
        return self._rules[env_name].score(reading.content, truth)

    def _read_text(self, env_name: str, text: str) -> Reading:
        rules = self._rules[env_name]
        flags = (
            ()
            if not self._gate
            else text_flags(
                text,
                max_tokens=self._max_tokens,
                prompt=self._prompts.get(env_name),
                vocabulary=rules.vocabulary,
            )
        )
        return Reading((), flags, rejected=True) if flags else rules.read(text)
