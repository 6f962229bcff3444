"""Asks an endpoint one question to check that it can serve as a judge."""

import asyncio
import time
from dataclasses import dataclass

from vagen.clients import DEADLINE, NoAnswerError
from vagen.config.judge_options import LLMJudgeConfig
from vagen.judge.llm.answers import read_verification
from vagen.judge.llm.client import ChatClient
from vagen.judge.llm.prompts import Role, verifier

_TEXT, _TRUTH = "the door is left", '{"door": "left"}'


@dataclass(frozen=True, slots=True)
class Probe:
    """Result of a probe."""

    seconds: float
    problem: str = ""
    """Error message; empty if there was an answer."""


async def probe(
    config: LLMJudgeConfig, key: str = "judge.llm", *, seconds: float | None = None
) -> Probe:
    """Asks one question.

    Args:
        config: The endpoint.
        key: Dotted key of the section, for messages.
        seconds: Timeout for all attempts of `config`; None makes one attempt.

    Raises:
        EndpointError: The endpoint rejects the key or does not know the model, or the key is
            missing.
    """
    start = time.monotonic()
    once = config if seconds is not None else config.model_copy(update={"retries": 0})
    client = ChatClient(once, key=key)
    if seconds is not None:
        DEADLINE.set(asyncio.get_running_loop().time() + seconds)
    try:
        question = verifier(Role.CURRENT_VERIFIER, _TEXT, _TRUTH)
        await client.ask(question, read_verification)
    except NoAnswerError as error:
        return Probe(time.monotonic() - start, str(error))
    finally:
        await client.close()
    return Probe(time.monotonic() - start)
