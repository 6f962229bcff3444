"""A language model as judge: behind any OpenAI-compatible endpoint, or in this process."""

from vagen.judge.llm.client import ChatClient, Respondent
from vagen.judge.llm.embedded import client_of
from vagen.judge.llm.llm_judge import LLMJudge
from vagen.judge.llm.prompts import PROMPT_VERSION, Role

__all__ = ["PROMPT_VERSION", "ChatClient", "LLMJudge", "Respondent", "Role", "client_of"]
