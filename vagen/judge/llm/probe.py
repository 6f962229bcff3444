"""One question to an endpoint, to see that it answers as a judge must."""

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
    """How an endpoint answered."""

    seconds: float
    problem: str = ""
    """Why there was no answer; empty if there was."""


async def probe(
    config: LLMJudgeConfig, key: str = "judge.llm", *, seconds: float | None = None
) -> Probe:
    """Asks one question.

    Args:
        config: The endpoint.
        key: Where the section stands, for messages.
        seconds: For all attempts that `config` allows; None makes one attempt.

    Raises:
        EndpointError: The endpoint refuses the key or does not know the model, or there is no
            key.
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
