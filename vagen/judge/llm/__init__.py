"""A language model as judge, behind any OpenAI-compatible endpoint."""

from vagen.judge.llm.client import ChatClient
from vagen.judge.llm.llm_judge import CascadeJudge, LLMJudge
from vagen.judge.llm.prompts import PROMPT_VERSION, Role

__all__ = ["PROMPT_VERSION", "CascadeJudge", "ChatClient", "LLMJudge", "Role"]
