"""Plays one row: one model's episodes on the levels of one experiment, judged and committed."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from vagen import progress
from vagen.clients import NoAnswerError
from vagen.clients.chat import Chat, TokenUsage
from vagen.clients.vendors import Hosted, parse_spec
from vagen.config.base import canonical_values, config_digest
from vagen.config.client_options import ClientConfig
from vagen.config.evaluation_options import EvaluationConfig, ModelEntry
from vagen.config.infra import InfraConfig
from vagen.config.schema import ExperimentConfig
from vagen.envs import parse_env_config
from vagen.evaluation.journal import Journal
from vagen.evaluation.policies import (
    SCRIPTED,
    EndpointFailure,
    HostedPolicy,
    ScriptedPolicy,
    check_expert,
    endpoint_options,
    open_chat,
    scripted_answers,
)
from vagen.evaluation.prices import Budget, BudgetExceeded, Prices
from vagen.evaluation.transcript import Transcript, request_body, without_token_limits
from vagen.judge.batch import score
from vagen.judge.scoring import cache_folder
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.conversation import ChatRenderer
from vagen.rollout.episodes import evaluation_specs
from vagen.rollout.levels import draw_levels
from vagen.rollout.play import check_rendering, make_environment, make_runner
from vagen.rollout.runner import EpisodeSpec, run_episode, run_to_end
from vagen.rollout.scripted import ExpertPolicy
from vagen.rollout.types import Policy, Trajectory
from vagen.service import AsyncEnv, Environments, environments_of
from vagen.stages.evaluate import commit_episodes, evaluate_model
from vagen.stages.rollout import episode_metrics


@dataclass(slots=True)
class PlayedRow:
    """The episodes of a row."""

    trajectories: list[Trajectory] = field(default_factory=list)
    images: dict[str, bytes] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Episodes in which the endpoint failed, by id, with the reason."""
    unplayed: list[str] = field(default_factory=list)
    """Ids of episodes that did not fit into the budget."""
    forms: dict[str, int] = field(default_factory=dict)
    """Number of answers other than plain text of a hosted model, by form."""
    tokens: TokenUsage | None = None
    """Tokens of all answers of a hosted model."""
    advice: str = ""
    """Why few answers of a hosted model have the layout, and what helps; empty if most have it."""


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """One model in one environment."""

    environment: str
    """Name of the environment in the evaluation."""
    config: ExperimentConfig
    entry: ModelEntry
    folder: Path
    model_path: str | None = None
    """Directory or hub id of a model that is neither hosted nor a script."""

    @property
    def hosted(self) -> Hosted | None:
        """The hosted model; None for other models."""
        return None if self.entry.model in SCRIPTED else parse_spec(self.entry.model)


@dataclass(slots=True)
class EvaluationContext:
    """Shared state of an evaluation's rows."""

    options: EvaluationConfig
    infra: InfraConfig
    journal: Journal
    prices: Prices
    budget: Budget
    unreachable: dict[str, str] = field(default_factory=dict)
    """Hosted models whose address does not respond, with the reason."""

    def play(self, row: EvaluationRow) -> None:
        """Plays a row and commits it, replacing an earlier result.

        Raises:
            EndpointError: The endpoint rejects the key, or does not know the model.
        """
        split, count, attempts = self.options.levels, self.options.count, self.options.attempts
        config = judged(row.config, attempts)
        facts = {"model": row.entry.model, "digest": self.digest(row)}
        if row.model_path is not None:
            evaluate_model(
                row.model_path,
                config,
                self.infra,
                split,
                count,
                row.folder,
                name=row.entry.label,
                more=facts,
                replace=True,
            )
            return
        levels = draw_levels(config, {split: count})
        specs = evaluation_specs(config, levels, split, attempts=attempts)
        if row.hosted is None:
            played = self._play_script(config, row.entry.model, specs)
        elif reason := self.unreachable.get(row.entry.label):
            played = PlayedRow(failed={spec.trajectory_id: reason for spec in specs})
        else:
            played = self._play_hosted(row, config, row.hosted, specs)
        self._commit(row, config, played, len(specs) // attempts, facts)

    def digest(self, row: EvaluationRow) -> str:
        """Digest of everything that determines a row's result; a row with the same digest is
        reused.
        """
        options = endpoint_options(self.options.endpoint, row.entry.endpoint, row.entry.label)
        decides = {
            "experiment": canonical_values(judged(row.config, self.options.attempts)),
            "levels": [self.options.levels, self.options.count],
            "model": row.model_path or row.entry.model,
        }
        if row.hosted is not None:
            limits = ClientConfig.model_fields.keys() | {"requests_per_minute", "api_key_env"}
            decides["endpoint"] = options.model_dump(mode="json", exclude={*limits})
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    def _play_script(
        self, config: ExperimentConfig, name: str, specs: Sequence[EpisodeSpec]
    ) -> PlayedRow:
        places = environments_of(self.infra.environments)
        if name == "expert":
            for env in config.envs.values():
                check_expert(env.env_name)
            expert = ExpertPolicy(ChatRenderer(Transcript()))
            return self._run(config, expert, specs, places, seen=expert.envs.__setitem__)
        answers = scripted_answers(config, places, blind=name == "blind")
        config_of = {spec.trajectory_id: spec.config_id for spec in specs}
        return self._run(config, ScriptedPolicy(answers, config_of), specs, places)

    def _play_hosted(
        self,
        row: EvaluationRow,
        config: ExperimentConfig,
        hosted: Hosted,
        specs: Sequence[EpisodeSpec],
    ) -> PlayedRow:
        options = endpoint_options(self.options.endpoint, row.entry.endpoint, row.entry.label)
        chat = open_chat(hosted, options)
        policy = HostedPolicy(
            environment=row.environment,
            spec=row.entry.model,
            chat=chat,
            make_body=partial(request_body, options, hosted),
            journal=self.journal,
            budget=self.budget,
            price=self.prices.price(row.entry.model),
        )
        places = environments_of(self.infra.environments)
        played = self._run(config, policy, specs, places, close=chat.close)
        played.forms = {form: n for form, n in policy.forms.items() if form != "text"}
        played.tokens = policy.tokens
        played.advice = layout_advice(config, played.trajectories, policy.reasoned)
        return played

    def _run(
        self,
        config: ExperimentConfig,
        policy: Policy,
        specs: Sequence[EpisodeSpec],
        places: Environments,
        *,
        seen: Callable[[str, AsyncEnv], None] = lambda *_: None,
        close: Callable[[], Any] | None = None,
    ) -> PlayedRow:
        split, transcript = self.options.levels, Transcript()
        config = without_token_limits(config)
        check_rendering(config, transcript, split, self.infra.environments)
        runner = make_runner(
            config,
            policy=policy,
            processor=transcript,
            sampling=config.actor_rollout_ref.rollout.val_kwargs,
        )
        played = PlayedRow()
        found: dict[str, Trajectory] = {}

        async def environment(spec: EpisodeSpec) -> AsyncEnv:
            env = await make_environment(config, spec, split, places)
            seen(spec.trajectory_id, env)
            return env

        async def one(spec: EpisodeSpec, gate: asyncio.Semaphore) -> None:
            async with gate:
                try:
                    found[spec.trajectory_id] = await run_episode(runner, spec, environment)
                except EndpointFailure as failure:
                    played.failed[spec.trajectory_id] = str(failure)
                except BudgetExceeded:
                    played.unplayed.append(spec.trajectory_id)
            advance(1)

        async def all_of_them() -> None:
            gate = asyncio.Semaphore(self.options.episodes)
            try:
                async with asyncio.TaskGroup() as group:
                    for spec in specs:
                        group.create_task(one(spec, gate))
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from None
            finally:
                if close is not None:
                    await close()

        with progress.bar("episodes", len(specs)) as advance:
            run_to_end(all_of_them())
        ids = [spec.trajectory_id for spec in specs]
        played.trajectories = [found[name] for name in ids if name in found]
        shown = {digest for t in played.trajectories for digest in t.frames}
        played.images = {digest: runner.images[digest] for digest in shown}
        return played

    def _commit(
        self,
        row: EvaluationRow,
        config: ExperimentConfig,
        played: PlayedRow,
        levels: int,
        facts: dict[str, Any],
    ) -> None:
        split = self.options.levels
        trajectories = played.trajectories
        metrics = episode_metrics(trajectories, split)
        metrics |= score(config, trajectories, cache=cache_folder(self.infra))
        metrics.pop(f"{split}/response_length", None)  # in characters
        batch = TrajectoryBatch(
            trajectories=trajectories,
            images=played.images,
            policy_version=row.entry.model,
            config_digest=config_digest(config),
            kind="evaluation",
            iteration=0,
            metrics=metrics,
        )
        commit_episodes(
            config,
            batch,
            row.folder,
            name=row.entry.label,
            split=split,
            levels=levels,
            attempts=self.options.attempts,
            tokenizer=Transcript().tokenizer,
            more={
                **facts,
                "failed": played.failed,
                "unplayed": played.unplayed,
                "forms": played.forms,
                "advice": played.advice,
                "tokens": played.tokens and asdict(played.tokens),
            },
            replace=True,
        )


def layout_advice(
    config: ExperimentConfig, trajectories: Sequence[Trajectory], reasoned: int
) -> str:
    """Why most answers lack the reasoning tags, and what helps; empty if they have them."""
    for config_id, spec in config.envs.items():
        options = parse_env_config(spec.env_name, spec.env_config)
        begin, end = f"<{options.tags.think}>", f"</{options.tags.think}>"
        turns = [turn for t in trajectories if t.config_id == config_id for turn in t.turns]
        lost = [
            turn.response_text
            for turn in turns
            if not turn.parsed.format_correct and begin not in turn.response_text
        ]
        if not options.layout.think or not lost or 2 * len(lost) <= len(turns):
            continue
        if 2 * sum(end in text for text in lost) > len(lost):
            why = f"{end} without {begin}: the server's chat template begins the answer with it"
        elif 2 * reasoned > len(lost):
            why = f"no {begin}: the server removes its content as reasoning"
        else:
            why = f"no {begin}: the model does not write it, or the server removes it"
        return (
            f"{len(lost)} of {len(turns)} answers in {config_id} have {why}; rename the tag "
            f"(envs.{config_id}.env_config.tags.think=thinking), or serve the model without a "
            "reasoning parser and with a chat template that leaves answers alone"
        )
    return ""


async def unreachable(chat: Chat) -> str:
    """Why the address of a hosted model does not respond; empty if it does."""
    try:
        await chat.probe()
    except NoAnswerError as error:
        return str(error)
    finally:
        await chat.close()
    return ""


def judged(config: ExperimentConfig, attempts: int) -> ExperimentConfig:
    """The experiment with this number of attempts per level, and every turn judged."""
    rollout = config.actor_rollout_ref.rollout
    val = rollout.val_kwargs.model_copy(update={"n": attempts})
    rollout = rollout.model_copy(update={"val_kwargs": val})
    network = config.actor_rollout_ref.model_copy(update={"rollout": rollout})
    scoring = {"use_state_reward": True, "sampling_fraction": 1.0}
    judge = config.judge.model_copy(update=scoring)
    return config.model_copy(update={"actor_rollout_ref": network, "judge": judge})
