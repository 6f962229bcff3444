"""Vendors' own APIs through LiteLLM, against servers with their wire formats."""

import asyncio
import base64
import io
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from chat_server import ANSWER, PROMPT, ChatServer
from PIL import Image

from vagen.clients import EndpointError, NoAnswerError, Reason
from vagen.clients.chat import ChatReply
from vagen.clients.vendors import VENDORS, parse_spec
from vagen.config.evaluation_options import EndpointConfig
from vagen.evaluation.policies import open_chat
from vagen.evaluation.prices import load_prices
from vagen.evaluation.transcript import request_body
from vagen.rollout.types import Sampling

pytestmark = [
    pytest.mark.slow,
    # Importing it would keep everybody who collects tests for seconds.
    pytest.mark.skipif(find_spec("litellm") is None, reason="LiteLLM is not installed"),
]

FRAME = Image.fromarray(np.full((64, 64, 3), 200, np.uint8))
MESSAGES = [
    {"role": "system", "content": "You are on ice."},
    {
        "role": "user",
        "content": [{"type": "image", "image": FRAME}, {"type": "text", "text": "Go"}],
    },
    {"role": "assistant", "content": "<answer>Left</answer>"},
    {"role": "user", "content": "And now?"},
]
ADDRESSES = {"anthropic": "", "gemini": "", "openai-responses": "/v1", "azure": ""}
"""What comes after the server's root, for vendors that LiteLLM asks."""
PLAIN = ("openai", "openrouter", "together", "ollama")
"""Those with OpenAI's own format, which need no library."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    for name in ("KEY", *(v.api_key_env for v in VENDORS.values() if v.api_key_env)):
        monkeypatch.setenv(name, "secret")
    with ChatServer(said=("<answer>Up</answer>",)) as running:
        yield running


def ask(
    server: ChatServer, vendor: str, spec: str = "", times: int = 1, **options: Any
) -> ChatReply:
    spec = spec or f"{vendor}:m@{server.root}{ADDRESSES.get(vendor, '/v1')}"
    config = EndpointConfig(
        **{"api_key_env": "KEY", "retries": 0, "backoff": 0.01, "timeout": 60} | options
    )
    hosted = parse_spec(spec)
    assert hosted is not None
    sampling = Sampling(temperature=0.5, max_new_tokens=99, seed=3)

    async def run() -> ChatReply:
        chat = open_chat(hosted, config)
        body = request_body(config, hosted, MESSAGES, sampling)
        try:
            return (await asyncio.gather(*(chat.reply(body) for _ in range(times))))[0]
        finally:
            await chat.close()

    return asyncio.run(run())


@pytest.mark.parametrize("vendor", [*ADDRESSES, *PLAIN])
def test_the_conversation_goes_out_and_the_reply_comes_back(
    server: ChatServer, vendor: str
) -> None:
    server.behaviour.key = "secret"
    reply = ask(server, vendor)
    assert reply.text == "<answer>Up</answer>" and reply.form == "text" and reply.finish == "stop"
    assert (reply.tokens.input, reply.tokens.output) == (PROMPT, ANSWER)
    assert reply.tokens.cached == (0 if vendor == "gemini" else 50)
    assert reply.tokens.reasoning == (0 if vendor == "anthropic" else 10)
    [body] = server.bodies
    sent = str(body)
    for text in ("You are on ice.", "Go", "<answer>Left</answer>", "And now?"):
        assert text in sent
    png = next(part for part in _strings(body) if "iVBOR" in part).rpartition("base64,")[2]
    assert Image.open(io.BytesIO(base64.b64decode(png))).size == (64, 64)
    assert 99 in _numbers(body) and 0.5 in _numbers(body)


@pytest.mark.parametrize("vendor", sorted({*ADDRESSES, *PLAIN} - {"azure"}))
def test_a_vendors_key_goes_to_no_other_address(server: ChatServer, vendor: str) -> None:
    ask(server, vendor, api_key_env=None)
    assert server.headers and "secret" not in str(server.headers)


def test_azure_is_at_its_customers_address(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.behaviour.key = "secret"
    assert ask(server, "azure", api_key_env=None).text == "<answer>Up</answer>"
    monkeypatch.delenv("AZURE_API_KEY")
    with pytest.raises(EndpointError, match="AZURE_API_KEY is not set"):
        ask(server, "azure", api_key_env=None)


@pytest.mark.parametrize("vendor", PLAIN)
def test_a_vendor_is_where_it_always_is_and_gets_its_key(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch, vendor: str
) -> None:
    there = VENDORS[vendor]
    assert there.address and there.address.endswith("/v1")
    monkeypatch.setitem(VENDORS, vendor, replace(there, address=server.base_url))
    server.behaviour.key = "secret" if there.api_key_env else None
    assert ask(server, vendor, f"{vendor}:deep/m-1:free", api_key_env=None).text
    [body] = server.bodies
    limit = "max_completion_tokens" if vendor == "openai" else "max_tokens"
    assert body["model"] == "deep/m-1:free" and body[limit] == 99
    assert ("secret" in str(server.headers)) is bool(there.api_key_env)


def test_any_model_of_litellm_by_its_name_there(server: ChatServer) -> None:
    server.behaviour.key = "secret"
    for name in ("openai/m", "openrouter/m", "together_ai/m"):
        assert ask(server, "", f"litellm:{name}@{server.base_url}").text == "<answer>Up</answer>"
    assert [body["model"] for body in server.bodies] == ["m"] * 3


@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
def test_requests_per_minute_are_spread(server: ChatServer, vendor: str) -> None:
    begun = time.monotonic()
    ask(server, vendor, times=6, requests_per_minute=120)  # those of a second go at once
    assert time.monotonic() - begun >= 1.5
    assert len(server.bodies) == 6


def test_prices_of_litellm_are_found_by_specification() -> None:
    prices = load_prices("litellm")
    assert prices.version.startswith("litellm ") and prices.currency == "USD"
    for spec, name in {
        "anthropic:claude-haiku-4-5": "litellm:anthropic/claude-haiku-4-5",
        "gemini:gemini-2.5-flash": "litellm:gemini/gemini-2.5-flash",
        "openai-responses:gpt-4o": "openai:gpt-4o@https://api.openai.com/v1",
        "together:deepseek-ai/DeepSeek-V3": "litellm:together_ai/deepseek-ai/DeepSeek-V3",
    }.items():
        price = prices.price(spec)
        assert price is not None and price == prices.price(name), spec
        assert 0 < price.input <= price.output < 100, spec
        assert price.cached_input is None or price.cached_input <= price.input
    assert prices.price("openai:nobody-s") is None


@pytest.mark.parametrize("vendor", ADDRESSES)
def test_faults_are_the_endpoints(server: ChatServer, vendor: str) -> None:
    server.behaviour.fault_share = 1.0
    for fault, reason in {
        "rate_limited": Reason.RATE_LIMITED,
        "overloaded": Reason.SERVER_ERROR,
        "server_error": Reason.SERVER_ERROR,
    }.items():
        server.behaviour.faults = (fault,)
        before = len(server.bodies)
        with pytest.raises(NoAnswerError) as caught:
            ask(server, vendor)
        assert caught.value.reason == reason
        assert len(server.bodies) == before + 1, "the library repeats nothing of its own"
        if fault == "rate_limited":
            assert caught.value.retry_after == pytest.approx(0.05)
    for fault in ("cut", "malformed"):
        server.behaviour.faults = (fault,)
        with pytest.raises(NoAnswerError):
            ask(server, vendor)
    server.behaviour.fault_share, server.behaviour.key = 0.0, "another"
    with pytest.raises(EndpointError, match="refuses the key") as refused:
        ask(server, vendor)
    assert "secret" not in str(refused.value)


def test_thoughts_refusals_and_cuts(server: ChatServer) -> None:
    server.behaviour.form = "reasoning"
    assert ask(server, "anthropic").reasoning == "Let me see."
    server.behaviour.form = "refusal"
    refused = ask(server, "anthropic")
    assert refused.text == "" and refused.form == "empty"
    server.behaviour.form = "cut_off"
    assert {ask(server, vendor).finish for vendor in ("anthropic", "gemini")} == {"length"}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def _numbers(value: Any) -> list[Any]:
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return [number for part in parts for number in _numbers(part)]
    return [value]


@pytest.mark.parametrize("source", ["tiny:vl", "gguf:a.gguf", "pip:p==1", "smolvlm:pip:p==1"])
def test_sources_of_local_models_name_no_vendor(source: str) -> None:
    assert parse_spec(source) is None
