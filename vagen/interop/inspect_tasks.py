"""Environments as tasks of Inspect AI: `inspect eval vagen/frozenlake`.

There is a task for every environment of this package, and `vagen/environment` for any other. A
sample is a level. The score has success, return and turns; its mean success is the headline.
"""

from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    Content,
    ContentImage,
    ContentReasoning,
    ContentText,
)
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver

from vagen.envs import ENVIRONMENTS
from vagen.envs.levels import Split
from vagen.interop.episodes import Episode, Level, levels
from vagen.rollout.thoughts import END, THINK

SCORES = "vagen_scores"
"""Where the solver leaves what the scorer reads."""


@solver
def play() -> Solver:
    """Plays the level in the sample's metadata with the model's responses."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        async with Episode(Level.model_validate(state.metadata)) as episode:
            state.messages = [ChatMessageSystem(content=episode.system_prompt)]
            while not episode.over and not state.completed:
                state.messages.append(ChatMessageUser(content=_content(episode.content)))
                state = await generate(state)
                response = _response(state.output.message)
                # In place of its parts: later turns show the model its answers as it wrote them.
                state.messages[-1] = ChatMessageAssistant(content=response)
                await episode.step(response)
            state.store.set(SCORES, episode.scores)
        return state

    return solve


@scorer(metrics={"*": [mean(), stderr()]})
def outcome() -> Scorer:
    """Success (0 or 1), return and number of turns."""

    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=state.store.get(SCORES))

    return score


@task
def environment(
    env_name: str,
    env_config: dict[str, Any] | None = None,
    split: Split = "test",
    count: int = 64,
    turns: int = 20,
) -> Task:
    """Levels of an environment.

    Args:
        env_name: Registered name such as `FrozenLake`, or `module:Class`.
        env_config: Options of the environment.
        split: Split of the levels.
        count: Number of levels.
        turns: Responses after which an episode ends.
    """
    samples = [
        Sample(input=each.name, id=each.name, metadata=each.model_dump())
        for each in levels(env_name, env_config or {}, split, count, turns)
    ]
    return Task(dataset=MemoryDataset(samples, name=env_name), solver=play(), scorer=outcome())


def _content(content: str | list[dict[str, Any]]) -> str | list[Content]:
    if isinstance(content, str):
        return content
    return [
        ContentText(text=part["text"])
        if part["type"] == "text"
        else ContentImage(image=part["image_url"]["url"])
        for part in content
    ]


def _response(message: ChatMessageAssistant) -> str:
    """The response as the environment reads it, with the `<think>` that Inspect takes out."""
    text = message.text
    if isinstance(message.content, str) or THINK in text:
        return text
    parts = [part for part in message.content if isinstance(part, ContentReasoning)]
    return "".join(f"{THINK}{part.reasoning}{END}" for part in parts) + text


def _task_of(env_name: str) -> None:
    """Registers the task of an environment of this package."""

    @task(name=env_name.lower())
    def named(
        env_config: dict[str, Any] | None = None,
        split: Split = "test",
        count: int = 64,
        turns: int = 20,
    ) -> Task:
        return environment(env_name, env_config, split, count, turns)


for _name in ENVIRONMENTS:
    _task_of(_name)
