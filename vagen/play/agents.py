"""Who can take a turn: the expert, chance, or a hosted model."""

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

from vagen.clients.vendors import parse_spec
from vagen.config.base import ConfigError
from vagen.config.evaluation_options import EndpointConfig
from vagen.evaluation.policies import check_expert, open_chat, scripted_answers
from vagen.evaluation.transcript import request_body
from vagen.play.game import Asked, Game
from vagen.service import environments_of

Agent = Callable[[Asked], Awaitable[str]]
"""Answers a prompt."""


def agent_named(spec: str, game: Game) -> Agent:
    """An agent for a game.

    Args:
        spec: `expert`, `random`, or a hosted model as in `vagen eval --model`.
        game: What it plays.

    Raises:
        ConfigError: There is no such agent, or the environment has no expert.
        EndpointError: The model's key is missing.
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
        raise ConfigError(
            f"there is no agent {spec!r}: give expert, random, or a hosted model such as "
            "openai:NAME@http://127.0.0.1:8000/v1 (vagen serve RUN serves one of yours)"
        )
    options = EndpointConfig()
    chat = open_chat(hosted, options)

    async def answer(asked: Asked) -> str:
        reply = await chat.reply(request_body(options, hosted, asked.messages, asked.sampling))
        return reply.text

    return answer


async def _drawn(answers: list[str], asked: Asked) -> str:
    return Random(asked.sampling.seed).choice(answers)
