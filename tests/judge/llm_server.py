"""A server with OpenAI's chat-completions protocol that answers by content, and fails on demand.

Of an extraction the places in the statement are found wherever they stand, a verification is looked
up in the truth. So what a judge makes of the answers can be compared with the truth itself.
"""

import asyncio
import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from threaded_server import ThreadedServer

FAULTS = ("timeout", "rate_limited", "server_error", "broken", "truncated", "slow")
MODEL = "scripted"
_PLACE = re.compile(r"(?i)(\w+) is (above|below|same row) and (left|right|same column)")


@dataclass(slots=True)
class Asked:
    """One request that came in."""

    at: float
    role: str
    """`extraction` or `verification`, with `current` or `next`."""
    document: dict[str, Any]
    """The user message."""
    forms: list[str]
    """Claims that an extraction may list."""
    form: str
    """Type of the response that was asked for."""
    authorization: str | None
    ending: str = ""
    """A fault, or `answered`."""

    @property
    def question(self) -> str:
        return json.dumps([self.role, self.document], sort_keys=True)


@dataclass(slots=True)
class Behaviour:
    """What the server does from now on."""

    fault_share: float = 0.0
    faults: tuple[str, ...] = FAULTS
    hang: float = 0.6
    """Seconds of a `timeout`."""
    slow: float = 0.05
    retry_after: str = "0.05"
    status: int | None = None
    """Of every answer, if given."""
    forms: tuple[str, ...] = ("json_schema", "json_object", "text")
    """Types of responses that it knows."""
    refusal: tuple[int, str] = (400, "not supported")
    """Of the others; llama-cpp-python's server: 500, and where the error is."""
    key: str | None = None
    """The only key that is let in."""
    delay: float = 0.0
    """Seconds before any answer but the `at_once` first ones."""
    at_once: int = 0
    wrap: str = "{}"
    """Put around the JSON of an answer."""
    usage: Any = field(default_factory=lambda: {"prompt_tokens": 300, "completion_tokens": 40})


class ScriptedServer(ThreadedServer):
    """Runs inside the `with` block; `base_url` is its address."""

    def __init__(self, *, seed: int = 0, **behaviour: Any) -> None:
        self.behaviour = Behaviour(**behaviour)
        self.asked: list[Asked] = []
        self._rng = random.Random(seed)
        super().__init__(self._app())

    @property
    def endings(self) -> Counter[str]:
        return Counter(asked.ending for asked in self.asked)

    def _app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/v1/chat/completions")
        async def complete(request: Request) -> Response:
            body = await request.json()
            asked = _asked(body, request.headers.get("authorization"))
            self.asked.append(asked)
            return await self._respond(asked, body)

        return app

    async def _respond(self, asked: Asked, body: dict[str, Any]) -> Response:
        behaviour = self.behaviour
        asked.ending = fault = self._draw()
        await asyncio.sleep(behaviour.delay if len(self.asked) > behaviour.at_once else 0)
        if behaviour.key is not None and asked.authorization != f"Bearer {behaviour.key}":
            asked.ending = "refused"
            return _error(401, f"bad key: {asked.authorization}")
        if body["model"] != MODEL:
            asked.ending = "refused"
            return _error(404, f"no model {body['model']}")
        if asked.form not in behaviour.forms:
            asked.ending = "form"
            return _error(*behaviour.refusal)
        if behaviour.status is not None:
            asked.ending = str(behaviour.status)
            return _error(behaviour.status, f"as told; you sent {asked.authorization}")
        if fault == "timeout":
            await asyncio.sleep(behaviour.hang)
        if fault == "slow":
            await asyncio.sleep(behaviour.slow)
        if fault == "rate_limited":
            return _error(429, "too many", {"Retry-After": behaviour.retry_after})
        if fault == "server_error":
            return _error(500, f"you sent {asked.authorization}")
        text = behaviour.wrap.replace("{}", json.dumps(answer_to(asked)))
        if fault == "broken":
            text = self._rng.choice((text[:-2] + "~", "I think so.", '{"verdict": "PERHAPS"}'))
        if fault == "truncated":
            text = text[: len(text) // 2]
        content = _completion(text, behaviour.usage, cut=fault == "truncated")
        return Response(content, media_type="application/json")

    def _draw(self) -> str:
        if self._rng.random() >= self.behaviour.fault_share:
            return "answered"
        return self._rng.choice(self.behaviour.faults)


def answer_to(asked: Asked) -> dict[str, Any]:
    """The right answer to a question."""
    statement = asked.document["statement"]
    if asked.role.startswith("extraction"):
        return {
            "claims": [
                {
                    "claim": found[1].lower(),
                    "quote": found[0],
                    "vertical": found[2],
                    "horizontal": found[3],
                }
                for found in _PLACE.finditer(statement)
                if found[1].lower() in asked.forms
            ]
        }
    truth = json.loads(asked.document["truth"])
    said = re.findall(r"(\w+) is (\w+)", statement)
    is_true = bool(said) and all(truth.get(name) == place for name, place in said)
    return {"reasoning": "looked up", "verdict": "YES" if is_true else "NO"}


def _asked(body: dict[str, Any], authorization: str | None) -> Asked:
    system, user = (message["content"] for message in body["messages"])
    kind = "verification" if "whether a statement about a scene is true" in system else "extraction"
    tense = "next" if "expects after its action" in system else "current"
    return Asked(
        at=time.monotonic(),
        role=f"{kind} {tense}",
        document=json.loads(user),
        forms=re.findall(r"^- `(\w+)`:", system, re.MULTILINE),
        form=body.get("response_format", {"type": "text"})["type"],
        authorization=authorization,
    )


def _completion(text: str, usage: Any, *, cut: bool) -> str:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "length" if cut else "stop",
    }
    return json.dumps({"object": "chat.completion", "choices": [choice], "usage": usage})


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    body = json.dumps({"error": {"message": message}})
    return Response(body, status, headers, media_type="application/json")
