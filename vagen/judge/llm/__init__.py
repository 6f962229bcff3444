"""A language model as judge, behind any OpenAI-compatible endpoint."""

from vagen.judge.llm.client import DEADLINE, ChatClient, Usage
from vagen.judge.llm.errors import EndpointError, NoAnswerError, Reason
from vagen.judge.llm.llm_judge import LLMJudge
from vagen.judge.llm.prompts import PROMPT_VERSION, Role

__all__ = [
    "DEADLINE",
    "PROMPT_VERSION",
    "ChatClient",
    "EndpointError",
    "LLMJudge",
    "NoAnswerError",
    "Reason",
    "Role",
    "Usage",
]
