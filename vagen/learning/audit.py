"""Audits rewards: returns of correct, wrong, blind and stalling policies.

The expert should have the highest return. If a policy that delays success, that describes
truthfully but loses, or that always writes the same has a higher one, training will find it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from vagen import progress
from vagen.config.schema import ExperimentConfig
from vagen.envs.parsing import ParsedResponse, ResponseParser, SectionName, write_response
from vagen.envs.registry import get_environment, parse_env_config
from vagen.experiment.hints import turn_discount
from vagen.judge.scoring import Scorer
from vagen.learning.selection import turn_rewards
from vagen.rollout.scripted import Respond, TextEnv, play_scripted
from vagen.rollout.types import Trajectory, Turn
from vagen.service import Environments

LEVELS = 16
MAX_ACTIONS = 6
"""Number of frequent expert actions to try as alternatives."""
TOLERANCE = 0.01
"""Share of the expert's return by which other policies may exceed it."""
NAMES = {
    "expert": "plays best and tells the truth",
    "stalling expert": "wins where the expert does, as late as it can",
    "truthful loser": "tells the truth and does not win",
    "random": "some answer of the expert's, at random",
    "constant": "one answer of the expert's, the best of all, again and again",
    "blind plan": "answers of the expert's in one order, whatever it sees",
}
BLIND = 0.15
"""Success of a blind plan above which there is a note."""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """Mean returns of a policy over levels."""

    policy: str
    success: float
    turns: float
    total: float
    """Sum of an episode's rewards."""
    discounted: float
    """Sum of rewards discounted between turns, as in training."""


@dataclass(frozen=True, slots=True)
class Audit:
    """Policies of one environment, the expert first."""

    config_id: str
    rows: list[AuditRow]

    @property
    def problems(self) -> list[str]:
        """Policies with a higher return than the expert."""
        expert = self.rows[0]
        most = expert.discounted + TOLERANCE * abs(expert.discounted)
        return [
            f"{self.config_id}: the {row.policy} ({NAMES[row.policy]}) earns {row.discounted:.2f}, "
            f"the expert {expert.discounted:.2f}"
            for row in self.rows[1:]
            if row.discounted > most
        ]

    @property
    def notes(self) -> list[str]:
        """Success of policies that ignore observations."""
        return [
            f"{self.config_id}: the {row.policy} wins {row.success:.2f} of the levels: what is "
            "shown is not needed for those"
            for row in self.rows
            if row.policy == "blind plan" and row.success > BLIND
        ]


def audit(
    config: ExperimentConfig,
    places: Environments,
    *,
    levels: int = LEVELS,
    on_row: Callable[[str, AuditRow], None] = lambda *_: None,
) -> Iterator[Audit]:
    """Audits every environment of an experiment that has an expert.

    Args:
        config: The experiment; only rule judges are used.
        places: Where environments run.
        levels: Number of training levels for each policy.
        on_row: Called with the environment's id and each finished policy's row.
    """
    judge = config.judge.model_copy(update={"type": "rule"})
    config = config.model_copy(update={"judge": judge})
    for config_id, spec in config.envs.items():
        if get_environment(spec.env_name).load().has_expert:
            rows = []
            for row in PolicyAudit(config, config_id, places, levels).rows():
                on_row(config_id, row)
                rows.append(row)
            yield Audit(config_id, rows)


class PolicyAudit:
    """Plays policies in one environment, with knowledge from its expert."""

    def __init__(
        self, config: ExperimentConfig, config_id: str, places: Environments, levels: int
    ) -> None:
        self.config, self.config_id, self.seeds = config, config_id, range(levels)
        self.spec = config.envs[config_id]
        self.options = parse_env_config(self.spec.env_name, self.spec.env_config)
        self.max_turns = config.rollout_manager.max_turns
        # A second instance is played ahead, to see the effect of an action.
        self.env, self.probe = (
            places.open(self.spec.env_name, self.spec.env_config) for _ in range(2)
        )
        self.scorer = Scorer(config)
        kind = get_environment(self.spec.env_name).load()
        self.parser = ResponseParser(
            layout=self.options.layout,
            tags=self.options.tags,
            read_action=str,
            separator=self.options.action_sep,
            max_actions=self.options.max_actions_per_step,
            markup_answer=getattr(kind, "markup_answer", False),
        )
        self.expert = self.play(lambda _: lambda env, _: env.expert_response())
        answers = [turn.parsed.answer for t in self.expert for turn in t.turns]
        self.actions = [
            answer for answer, _ in Counter(answers).most_common(MAX_ACTIONS) if answer is not None
        ]

    def rows(self) -> Iterator[AuditRow]:
        """Plays all policies; yields their results."""
        try:
            said = [turn.response_text for t in self.expert for turn in t.turns]
            rng = Random(f"audit {self.config_id}")
            yield self.row("expert", self.expert)
            yield self.row("stalling expert", self.play(self._staller))
            yield self.row("truthful loser", self.play(self._loser))
            yield self.row("random", self.play(lambda _: lambda *_: rng.choice(said)))
            constants = [text for text, _ in Counter(said).most_common(2 * MAX_ACTIONS)]
            rows = [
                self.row("constant", self.play(lambda _, text=text: lambda *_: text))
                for text in constants
            ]
            yield max(rows, key=lambda row: row.discounted)
            yield self.row("blind plan", self.play(self._follow(self._blind_plan(said))))
        finally:
            self.env.close()
            self.probe.close()

    def play(self, policy: Callable[[int], Respond]) -> list[Trajectory]:
        """Plays and judges an episode on each level; the policy gets the level's seed."""
        episodes = self._episodes(policy, self.seeds)
        asyncio.run(self.scorer.score_all(episodes))
        return episodes

    def _episodes(self, policy: Callable[[int], Respond], seeds: range) -> list[Trajectory]:
        episodes = []
        with progress.bar(f"{self.config_id}: episodes", len(seeds)) as advance:
            for seed in seeds:
                episode = play_scripted(
                    self.env,
                    policy(seed),
                    config_id=self.config_id,
                    env_name=self.spec.env_name,
                    seed=seed,
                    max_turns=self.max_turns,
                )
                episodes.append(episode)
                advance(1)
        return episodes

    def row(self, policy: str, episodes: Sequence[Trajectory]) -> AuditRow:
        """Means over episodes."""
        gamma = turn_discount(self.config)
        earned = [turn_rewards(self.config, episode) for episode in episodes]
        discounted = [sum(gamma**k * r for k, r in enumerate(rewards)) for rewards in earned]
        return AuditRow(
            policy,
            success=float(np.mean([episode.success for episode in episodes])),
            turns=float(np.mean([len(episode.turns) for episode in episodes])),
            total=float(np.mean([sum(rewards) for rewards in earned])),
            discounted=float(np.mean(discounted)),
        )

    def _blind_plan(self, said: Sequence[str]) -> list[str]:
        """Responses with the highest success, found turn by turn on separate levels."""
        seeds = range(len(self.seeds), 2 * len(self.seeds))
        answers = {self.parser.parse(text).answer: text for text in said}
        texts = [answers[action] for action in self.actions]
        plan: list[str] = []

        def wins(text: str) -> int:
            return sum(t.success for t in self._episodes(self._follow([*plan, text]), seeds))

        for _ in range(self.max_turns):
            plan.append(max(texts, key=wins))
        return plan

    def _follow(self, plan: list[str]) -> Callable[[int], Respond]:
        """Plays responses in order, and repeats the last."""
        return lambda _: lambda _, turns: plan[min(len(turns), len(plan) - 1)]

    def _staller(self, seed: int) -> Respond:
        wins = self.expert[seed].success

        def respond(env: TextEnv, turns: list[Turn]) -> str:
            found = (
                response
                for response, over, _ in self._options(seed, turns)
                if wins and not over and self._wins(seed, turns, response)
            )
            return next(found, None) or env.expert_response()

        return respond

    def _loser(self, seed: int) -> Respond:
        def respond(env: TextEnv, turns: list[Turn]) -> str:
            options = list(self._options(seed, turns))
            continuing = [response for response, over, _ in options if not over]
            lost = [response for response, _, success in options if not success]
            return next(iter([*continuing, *lost]), None) or env.expert_response()

        return respond

    def _options(self, seed: int, turns: list[Turn]) -> Iterator[tuple[str, bool, bool]]:
        """For each action: a response with true texts, whether it ends the episode, its success."""
        for action in self.actions:
            self._replay(seed, turns)
            response = self.probe.expert_response()
            here = self.parser.parse(response)
            *_, terminated, truncated, info = self.probe.step(self._write(action, here, here))
            over = terminated or truncated
            if action != here.answer:  # otherwise its outcome is the expert's
                there = here if over else self.parser.parse(self.probe.expert_response())
                response = self._write(action, here, there)
            yield response, over, info["success"]

    def _wins(self, seed: int, turns: list[Turn], response: str) -> bool:
        """Whether the expert can still succeed in time after a response."""
        self._replay(seed, turns)
        for _ in range(len(turns), self.max_turns):
            *_, terminated, truncated, info = self.probe.step(response)
            if terminated or truncated:
                return info["success"]
            response = self.probe.expert_response()
        return False

    def _replay(self, seed: int, turns: list[Turn]) -> None:
        """Brings the second instance to the state after these turns."""
        self.probe.reset(seed=seed)
        for turn in turns:
            self.probe.step(turn.response_text)

    def _write(self, action: str, here: ParsedResponse, there: ParsedResponse) -> str:
        reasoning = here.reasoning or ""
        texts: dict[SectionName, str] = {
            "think": reasoning,
            "observation": here.observation or "",
            "reasoning": reasoning,
            "prediction": there.observation or "",
            "answer": action,
            "memory": here.memory or "keep",
        }
        return write_response(self.options.layout, self.options.tags, texts)
