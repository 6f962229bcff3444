"""Servers with the wire formats of chat APIs: they answer by content, fail on demand, and count.

Equal conversations get equal answers, so that an evaluation gives the same table whatever happens
to it on the way. Formats: OpenAI's chat completions and responses, Anthropic's messages, Gemini's
`generateContent`, as their documentation shows them.
"""

import asyncio
import hashlib
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from threaded_server import ThreadedServer

FAULTS = ("rate_limited", "overloaded", "server_error", "cut", "malformed", "shapeless")
FORMS = ("refusal", "empty", "tool_call", "reasoning", "filtered", "cut_off")
PROMPT, ANSWER = 200, 30
"""Tokens that every request takes."""


@dataclass(slots=True)
class Behaviour:
    """What the server does from now on."""

    fault_share: float = 0.0
    faults: tuple[str, ...] = FAULTS
    form: str = "text"
    """Of every answer."""
    delay: float = 0.0
    retry_after: str = "0.05"
    key: str | None = None
    """The only key that is let in."""
    said: tuple[str, ...] = ("no layout at all",)
    """What it chooses its answers from."""
    instead: tuple[int, Any] | None = None
    """Status and content of every response, whatever is asked."""
    changed: dict[str, Any] = field(default_factory=dict)
    """What replaces parts of every completion, such as its `usage`."""


class ChatServer(ThreadedServer):
    """Runs inside the `with` block; `base_url` is its address."""

    def __init__(self, **behaviour: Any) -> None:
        self.behaviour = Behaviour(**behaviour)
        self.bodies: list[dict[str, Any]] = []
        """Every request, in order of arrival."""
        self.headers: list[dict[str, str]] = []
        self.answered: list[str] = []
        """Digest of every request that was answered, in order: what had to be paid for."""
        self.endings: Counter[str] = Counter()
        self.most_at_once = self._at_once = 0
        self._rng = random.Random(0)
        super().__init__(self._app())

    def _app(self) -> FastAPI:
        app = FastAPI()
        for path, write in {
            "/v1/chat/completions": _openai,
            "/openai/deployments/{model}/chat/completions": _openai,  # Azure's
            "/v1/responses": _responses,
            "/v1/messages": _anthropic,
            "/models/{model}": _gemini,
            "/v1beta/models/{model}": _gemini,
        }.items():

            async def answer(request: Request, write: Any = write) -> Response:
                return await self._respond(request, write)

            app.post(path)(answer)
        return app

    async def _respond(self, request: Request, write: Any) -> Response:
        behaviour, body = self.behaviour, await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await asyncio.sleep(behaviour.delay)
            fault = self._draw()
            self.endings[fault] += 1
            if behaviour.key is not None and not _has_key(request, behaviour.key):
                return _error(401, "bad key")
            if fault == "rate_limited":
                return _error(429, "too many", {"Retry-After": behaviour.retry_after})
            if fault == "overloaded":
                return _error(503, "busy")
            if fault == "server_error":
                return _error(500, "sorry")
            if behaviour.instead is not None:
                status, content = behaviour.instead
                return Response(json.dumps(content), status, media_type="application/json")
            digest = digest_of(body)
            text = behaviour.said[int(digest, 16) % len(behaviour.said)]
            content = json.dumps(write(behaviour.form, text) | behaviour.changed)
            if fault == "cut":
                length = {"Content-Length": str(len(content))}
                half = content[: len(content) // 2]
                return Response(half, headers=length, media_type="application/json")
            if fault == "malformed":
                content = content[:-7] + "~"
            if fault == "shapeless":
                content = json.dumps({"choices": [], "usage": None})
            if fault == "answered":
                self.answered.append(digest)
            return Response(content, media_type="application/json")
        finally:
            self._at_once -= 1

    def _draw(self) -> str:
        if self._rng.random() >= self.behaviour.fault_share:
            return "answered"
        return self._rng.choice(self.behaviour.faults)


def digest_of(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _has_key(request: Request, key: str) -> bool:
    headers = request.headers
    names = ("authorization", "x-api-key", "x-goog-api-key", "api-key")
    sent = [headers.get(name) for name in names]
    return f"Bearer {key}" in sent or key in sent


def _openai(form: str, text: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    finish = "stop"
    if form == "refusal":
        message |= {"content": None, "refusal": "I cannot help with that."}
    if form == "empty":
        message["content"] = ""
    if form == "tool_call":
        call = {"id": "c", "type": "function", "function": {"name": "move", "arguments": "{}"}}
        message |= {"content": None, "tool_calls": [call]}
        finish = "tool_calls"
    if form == "reasoning":
        message["reasoning_content"] = "Let me see."
    if form == "filtered":
        message["content"], finish = None, "content_filter"
    if form == "cut_off":
        finish = "length"
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": PROMPT,
            "completion_tokens": ANSWER,
            "total_tokens": PROMPT + ANSWER,
            "prompt_tokens_details": {"cached_tokens": 50, "image_tokens": 100},
            "completion_tokens_details": {"reasoning_tokens": 10},
        },
    }


def _responses(form: str, text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "model": "m",
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "output": [
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "role": "assistant",
                "content": [part],
            },
        ],
        "usage": {
            "input_tokens": PROMPT,
            "input_tokens_details": {"cached_tokens": 50},
            "output_tokens": ANSWER,
            "output_tokens_details": {"reasoning_tokens": 10},
            "total_tokens": PROMPT + ANSWER,
        },
    }


def _anthropic(form: str, text: str) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": text}]
    if form == "reasoning":
        content.insert(0, {"type": "thinking", "thinking": "Let me see.", "signature": "s"})
    stop = {"refusal": "refusal", "cut_off": "max_tokens"}.get(form, "end_turn")
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [] if form in ("refusal", "empty") else content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {
            "input_tokens": PROMPT - 50,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 50,
            "output_tokens": ANSWER,
        },
    }


def _gemini(form: str, text: str) -> dict[str, Any]:
    candidate = {
        "content": {"parts": [{"text": text}], "role": "model"},
        "finishReason": "MAX_TOKENS" if form == "cut_off" else "STOP",
        "index": 0,
    }
    return {
        "candidates": [candidate],
        "modelVersion": "m",
        "usageMetadata": {
            "promptTokenCount": PROMPT,
            "candidatesTokenCount": ANSWER - 10,
            "thoughtsTokenCount": 10,
            "totalTokenCount": PROMPT + ANSWER,
            "promptTokensDetails": [
                {"modality": "TEXT", "tokenCount": PROMPT - 100},
                {"modality": "IMAGE", "tokenCount": 100},
            ],
        },
    }


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    body = json.dumps({"error": {"message": message, "type": "error", "code": status}})
    return Response(body, status, headers, media_type="application/json")
