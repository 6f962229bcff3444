"""The rule judge: reads what the agent states and compares it with the truth, without a model."""

from collections.abc import Mapping
from functools import lru_cache

from vagen.envs.base import State
from vagen.judge.base import Verdict
from vagen.judge.gate import is_far_too_long, same_words, statement_flags, text_flags
from vagen.judge.language import read_statement
from vagen.judge.lexicon import BOX, TARGET
from vagen.judge.matching import (
    Truth,
    merge_unique,
    read_truth,
    score_frozenlake,
    score_sokoban,
)
from vagen.judge.statement import Statement

REQUIRED_OBJECTS = {"FrozenLake": (TARGET,), "Sokoban": (TARGET, BOX)}
"""By environment: the object classes a description must place. Its keys are what is judged."""


class RuleJudge:
    """Scores state descriptions of FrozenLake and Sokoban by rules.

    A text that the gate refuses scores 0 and is flagged `<section>:<reason>`. A section that is
    absent (None) and an environment without rules have no score, which is not 0. Texts are read
    once: readings are kept in a cache of bounded size.
    """

    def __init__(
        self,
        *,
        require_holes: bool = False,
        max_tokens: int = 200,
        coordinate_base: int = 0,
        prompts: Mapping[str, str] | None = None,
        cache_size: int = 16_384,
    ) -> None:
        """Creates a judge.

        Args:
            require_holes: A FrozenLake description must place every hole for a full score; if
                not, holes are judged where they are described.
            max_tokens: Most words and marks of a text.
            coordinate_base: What rows and columns in texts count from, 0 or 1.
            prompts: System prompt by environment: text copied from it is refused.
            cache_size: Most readings kept.
        """
        self._require_holes = require_holes
        self._max_tokens = max_tokens
        self._coordinate_base = coordinate_base
        self._prompts = dict(prompts or {})
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
        """`observation` against `state`, `prediction` against `next_state`."""
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
        """Same as `score`, for callers without an event loop."""
        if env_name not in REQUIRED_OBJECTS:
            return Verdict(observation=None, prediction=None)
        flags: list[str] = []
        observation_score = prediction_score = None
        if observation is not None:
            truth = read_truth(state)
            observation_score, reasons = self._judge(env_name, observation, truth)
            flags += [f"observation:{reason}" for reason in reasons]
        if prediction is not None:
            truth = read_truth(next_state)
            prediction_score, reasons = self._judge(env_name, prediction, truth)
            if (
                observation is not None
                and not reasons
                and same_words(observation, prediction)
                and self._has_changed(env_name, prediction, read_truth(state), truth)
            ):
                prediction_score, reasons = 0.0, ("copied_observation",)
            flags += [f"prediction:{reason}" for reason in reasons]
        return Verdict(observation_score, prediction_score, tuple(flags))

    def _judge(self, env_name: str, text: str, truth: Truth) -> tuple[float, tuple[str, ...]]:
        if is_far_too_long(text, self._max_tokens):
            return 0.0, ("too_long",)
        flags, statement = self._read(env_name, text)
        if flags or statement is None:
            return 0.0, flags
        claims = merge_unique(statement, truth)
        if claims is None:
            return 0.0, ("contradiction",)
        if env_name == "Sokoban":
            return score_sokoban(statement, claims, truth), ()
        score = score_frozenlake(statement, claims, truth, require_holes=self._require_holes)
        return score, ()

    def _read_text(self, env_name: str, text: str) -> tuple[tuple[str, ...], Statement | None]:
        """The gate's flags and, if there are none, what the text states."""
        prompt = self._prompts.get(env_name)
        flags = text_flags(text, max_tokens=self._max_tokens, prompt=prompt)
        if flags:
            return flags, None
        statement = read_statement(text, env_name, coordinate_base=self._coordinate_base)
        return statement_flags(statement, REQUIRED_OBJECTS[env_name]), statement

    def _has_changed(self, env_name: str, text: str, before: Truth, after: Truth) -> bool:
        """Whether what `text` speaks of became different, at the precision it speaks with.

        Relations of the objects it names if it states relations; positions, the player's
        included, if it states positions.
        """
        _, statement = self._read(env_name, text)
        if statement is None:
            return False
        claims = [claim for stated in statement.claims.values() for claim in stated]
        if any(claim.is_positional for claim in claims):
            return before != after
        return any(
            sorted(claim[:2] for claim in before.objects.get(name, ()))
            != sorted(claim[:2] for claim in after.objects.get(name, ()))
            for name in statement.claims
        )
