"""A language model as judge: behind any OpenAI-compatible endpoint, or in this process."""

from vagen.judge.llm.client import DEADLINE, ChatClient, Client, Usage
from vagen.judge.llm.embedded import client_of
from vagen.judge.llm.errors import EndpointError, NoAnswerError, Reason
from vagen.judge.llm.llm_judge import LLMJudge
from vagen.judge.llm.prompts import PROMPT_VERSION, Role

__all__ = [
    "DEADLINE",
    "PROMPT_VERSION",
    "ChatClient",
    "Client",
    "EndpointError",
    "LLMJudge",
    "NoAnswerError",
    "Reason",
    "Role",
    "Usage",
    "client_of",
]
