"""Who can take a turn: the expert, chance, a model here, or a hosted one."""

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np

from vagen.clients.vendors import parse_spec
from vagen.config import InfraConfig
from vagen.config.evaluation_options import EndpointConfig
from vagen.envs.base import IMAGE_PLACEHOLDER, Observation
from vagen.evaluation.policies import check_expert, open_chat, scripted_answers
from vagen.evaluation.transcript import request_body
from vagen.play.game import Asked, Game
from vagen.service import environments_of

Agent = Callable[[Asked], Awaitable[str]]
"""Answers a prompt."""


def agent_named(spec: str, game: Game, infra: InfraConfig | None = None) -> Agent:
    """An agent for a game.

    Args:
        spec: `expert`, `random`, a hosted model as in `vagen eval --model`, or the source of a
            model that runs here.
        game: Game of the agent.
        infra: Device and threads of a model that runs here; None for the default.

    Raises:
        ConfigError: There is no such vendor, or the environment has no expert.
        EndpointError: The model's key is missing.
        ModelError: The model cannot be loaded.
    """
    if spec in ("expert", "random"):
        check_expert(game.spec.env_name)
    if spec == "expert":
        return lambda asked: asked.env.expert_response()
    if spec == "random":
        answers = scripted_answers(game.config, environments_of(None), blind=False)
        return partial(_drawn, answers[game.config_id])
    hosted = parse_spec(spec)
    if hosted is None:
        return _local(spec, infra or InfraConfig())
    options = EndpointConfig()
    chat = open_chat(hosted, options)

    async def answer(asked: Asked) -> str:
        reply = await chat.reply(request_body(options, hosted, asked.messages, asked.sampling))
        return reply.text

    return answer


async def _drawn(answers: list[str], asked: Asked) -> str:
    return Random(asked.sampling.seed).choice(answers)


def _local(source: str, infra: InfraConfig) -> Agent:
    from vagen.serve.messages import Chat
    from vagen.serve.model import load_served

    model = load_served(source, infra, rows=1)

    async def answer(asked: Asked) -> str:
        system, *turns = asked.messages
        chat = Chat(
            system_prompt=system["content"],
            observations=[_observation(turn["content"]) for turn in turns[::2]],
            answers=[turn["content"] for turn in turns[1::2]],
        )
        return (await model.answer(await model.prompt(chat), asked.sampling)).text

    return answer


def _observation(content: str | list[dict[str, Any]]) -> Observation:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {
        "text": "".join(part.get("text", IMAGE_PLACEHOLDER) for part in parts),
        "images": tuple(np.asarray(part["image"]) for part in parts if "image" in part),
    }
