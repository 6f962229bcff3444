"""The server of a tiny model, asked by OpenAI's own client and by hand."""

import asyncio
import base64
import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from threaded_server import ThreadedServer

from vagen.serve.app import Server, ServeSettings, make_app
from vagen.serve.messages import ChatMessage, read_chat
from vagen.serve.model import AnswerReader, ServedModel

pytestmark = pytest.mark.slow


def picture(kind: str = "PNG", size: tuple[int, int] = (64, 64), colour: str = "red") -> str:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, kind)
    content = base64.b64encode(file.getvalue()).decode()
    return f"data:image/{kind.lower()};base64,{content}"


def user(*parts: str) -> dict[str, Any]:
    content = [
        {"type": "image_url", "image_url": {"url": part}}
        if part.startswith(("data:", "http"))
        else {"type": "text", "text": part}
        for part in parts
    ]
    return {"role": "user", "content": content}


QUESTION = [{"role": "system", "content": "Answer."}, user("Look: ", picture(), " Where to?")]
ASKED = {"model": "it", "messages": QUESTION, "max_tokens": 12, "temperature": 0}


@contextmanager
def serving(model, token: str | None = None, rows: int = 4, **settings: Any) -> Iterator[Any]:
    served = ServedModel(model, rows=rows)
    server = Server(served, "it", ServeSettings(**settings), token)
    with ThreadedServer(make_app(server)) as running:
        yield running, server
    served.close()


@pytest.fixture(scope="module")
def server(vl_model) -> Iterator[Any]:
    with serving(vl_model) as running:
        yield running


@pytest.fixture(scope="module")
def ask(server) -> Any:
    """Sends the usual request with changes; returns the response."""
    url = f"{server[0].base_url}/chat/completions"
    return lambda **changes: httpx.post(url, json=ASKED | changes, timeout=60)


@pytest.fixture
def client(server) -> Any:
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=server[0].base_url, api_key="none", max_retries=0)


def test_the_client_of_openai_reads_answers_whole_and_in_parts(client) -> None:
    assert [model.id for model in client.models.list()] == ["it"]
    whole = client.chat.completions.create(**ASKED, logprobs=True)
    [choice] = whole.choices
    assert choice.message.content and choice.finish_reason in ("stop", "length")
    stream = client.chat.completions.create(
        **ASKED, logprobs=True, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    parts = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(part.delta.content or "" for part in parts) == choice.message.content
    assert len(parts) > 3 and parts[-1].finish_reason == choice.finish_reason
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (
        whole.usage.prompt_tokens,
        whole.usage.completion_tokens,
    )
    tokens = [token for part in parts if part.logprobs for token in part.logprobs.content]
    assert "".join(token.token for token in tokens) == choice.message.content
    assert [t.token for t in tokens] == [t.token for t in choice.logprobs.content]
    assert all(token.logprob < 0 for token in tokens)


def test_a_conversation_continues_its_cache(client) -> None:
    first = client.chat.completions.create(**ASKED)
    answer = first.choices[0].message.model_dump()
    longer = [*QUESTION, answer, {"role": "user", "content": "And then?"}]
    then = client.chat.completions.create(**ASKED | {"messages": longer})
    # All but the last sampled token, which has no keys and values yet.
    cached = first.usage.prompt_tokens + first.usage.completion_tokens - 1
    assert then.usage.prompt_tokens_details.cached_tokens == cached
    other = [*QUESTION[:1], user("Look: ", picture(colour="blue"), " Where to?"), *longer[2:]]
    then = client.chat.completions.create(**ASKED | {"messages": other})
    assert then.usage.prompt_tokens_details.cached_tokens == 0, "the picture is another"


def test_sampled_ids_stay_in_context(server, ask) -> None:
    """Hot answers are texts that the tokenizer would mostly write with other ids."""
    model, differ = server[1].model, 0
    for seed in range(4):
        said = ask(temperature=3.0, seed=seed).json()["choices"][0]["message"]
        messages = [ChatMessage.model_validate(m) for m in [*QUESTION, said, user("Go on.")]]
        sampled = list(model._sampled.values())[-1]
        chat = read_chat(messages)
        row = run_in(model._prompt(chat), model)
        follows = len(row.ids) - len(model.renderer.following(chat.observations[-1]).ids)
        assert row.ids[:follows][-len(sampled) :] == sampled
        differ += model.renderer.answer(said["content"]) != sampled
    assert differ


def run_in(work: Any, model: ServedModel) -> Any:
    return asyncio.run_coroutine_threadsafe(work, model._loop).result(60)


def test_requests_are_answered_together_as_they_are_alone(server, ask) -> None:
    policy, widths = server[1].model.policy, []
    decode = policy._decode
    policy._decode = lambda: (widths.append(len(policy._active)), decode())
    bodies = [{"seed": seed, "temperature": 1.0} for seed in range(4)]
    alone = [ask(**body).json()["choices"][0]["message"]["content"] for body in bodies]
    assert max(widths) == 1 and len(set(alone)) > 1
    together: dict[int, str] = {}

    def one(i: int) -> None:
        together[i] = ask(**bodies[i]).json()["choices"][0]["message"]["content"]

    threads = [threading.Thread(target=one, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    policy._decode = decode
    assert [together[i] for i in range(4)] == alone
    assert max(widths) > 1


def test_64_clients_get_their_answers_when_others_hang_up(server) -> None:
    """A third of the clients give up at once; the others' answers stay, and no place is lost."""
    url = f"{server[0].base_url}/chat/completions"

    async def one(client: httpx.AsyncClient, number: int, hangs_up: bool) -> str | None:
        body = ASKED | {"messages": [user(f"Where to? {number}")]}
        try:
            reply = await client.post(url, json=body, timeout=0.03 if hangs_up else 200)
        except httpx.TimeoutException:
            return None
        return reply.json()["choices"][0]["message"]["content"]

    async def together(hang_up: int) -> list[str | None]:
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=64)) as client:
            clients = (one(client, number, number % 3 < hang_up) for number in range(64))
            return list(await asyncio.gather(*clients))

    calm, hurried = (asyncio.run(together(hang_up)) for hang_up in (0, 1))
    assert None not in calm and None in hurried
    assert all(found in (None, expected) for found, expected in zip(hurried, calm, strict=True))
    assert not any(found is None for found in hurried[1::3] + hurried[2::3])
    for _ in range(500):
        if not server[1]._pending:
            break
        time.sleep(0.02)
    assert server[1]._pending == 0 and asyncio.run(together(0)) == calm


def test_an_answer_ends_before_a_stop_text(ask) -> None:
    whole = ask().json()["choices"][0]["message"]["content"]
    stop = whole[len(whole) // 2 :][:3]
    for stream in (False, True):
        response = ask(stop=["never", stop], stream=stream)
        if stream:
            lines = response.text.split("\n\n")
            assert lines[-2:] == ["data: [DONE]", ""]
            parts = [httpx.Response(200, content=line[6:]).json() for line in lines[:-2]]
            said = "".join(part["choices"][0]["delta"].get("content", "") for part in parts)
            finish = parts[-1]["choices"][0]["finish_reason"]
        else:
            [choice] = response.json()["choices"]
            said, finish = choice["message"]["content"], choice["finish_reason"]
        assert (said, finish) == (whole[: whole.index(stop)], "stop")


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"n": 2}, 400, "send n=1"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "calls no tools"),
        ({"temprature": 1}, 400, "temprature"),
        ({"max_tokens": 9000}, 400, "send max_tokens="),
        ({"messages": [user("word " * 9000)]}, 400, "leave out earlier messages"),
        ({"messages": [user("a"), user("b")]}, 400, "put adjacent messages of one role into one"),
        ({"messages": [user("a"), {"role": "assistant", "content": "b"}]}, 400, "the user's"),
        ({"messages": [{"role": "tool", "content": "b"}]}, 400, "'user'"),
        ({"messages": [user("https://example.org/a.png")]}, 400, "data URL"),
        ({"messages": [user("data:image/png;base64,AAAA")]}, 400, "cannot be decoded"),
        ({"messages": [user(picture("PNG", (5000, 5000)))]}, 400, "5000 x 5000 pixels"),
        ({"model": "other"}, 404, "this server has 'it'"),
    ],
)
def test_what_it_cannot_do_is_refused_with_advice(ask, changes, status, said) -> None:
    response = ask(**changes)
    assert response.status_code == status
    assert said in response.json()["error"]["message"]
    assert response.json()["error"]["type"]


def test_fields_that_change_nothing_are_taken(ask) -> None:
    plain = ask().json()["choices"]
    more = {"n": 1, "tools": None, "user": "me", "presence_penalty": 0.0, "metadata": {}}
    assert ask(**more).json()["choices"] == plain
    jpeg = ask(messages=[user(picture("JPEG"), "a <image> in the text")])
    assert jpeg.status_code == 200, jpeg.text


def test_a_text_model_says_that_it_reads_no_pictures(text_model) -> None:
    with serving(text_model) as (running, _):
        response = httpx.post(f"{running.base_url}/chat/completions", json=ASKED)
        assert response.status_code == 400 and "send text alone" in response.text


def test_limits_of_clients_sizes_and_time(vl_model) -> None:
    long = ASKED | {"temperature": 1.0, "max_tokens": 8000, "messages": [user("Go.")]}
    limits = {"max_pending": 1, "answer_seconds": 0.5, "max_body_bytes": 5000}
    with serving(vl_model, "0123456789abcdef", **limits) as (running, server):
        processor = vl_model.processor
        url, key = f"{running.base_url}/chat/completions", "Bearer 0123456789abcdef"
        assert httpx.post(url, json=ASKED).status_code == 401
        assert httpx.get(f"{running.base_url}/models").status_code == 401
        assert httpx.get(f"{running.root}/health").json() == {"status": "ok"}
        http = httpx.Client(headers={"Authorization": key}, timeout=60)
        large = http.post(url, json=ASKED | {"messages": [user("word " * 5000)]})
        assert large.status_code == 413 and large.json()["error"]["message"]
        eos, processor.eos_id = processor.eos_id, -1  # no answer ends by itself
        try:
            with http.stream("POST", url, json=long | {"stream": True}) as stream:
                events = stream.iter_lines()
                next(events)
                busy = http.post(url, json=ASKED)
                assert (busy.status_code, busy.headers["retry-after"]) == (429, "1")
                assert busy.json()["error"]["code"] == "rate_limit_exceeded"
                assert any("longer than 0.5 s" in line for line in events)
            late = http.post(url, json=long)
            assert late.status_code == 504 and "max_tokens" in late.json()["error"]["message"]
        finally:
            processor.eos_id = eos
        assert http.post(url, json=ASKED | {"messages": [user("Go.")]}).status_code == 200
        assert not server.model.policy._active, "what nobody waits for is not computed"
        told = httpx.get(f"{running.root}/metrics").text
        for status in (200, 401, 413, 429, 504):
            assert f'vagen_serve_responses_total{{status="{status}"}}' in told


def test_a_fault_of_the_engine_fails_its_requests_alone(server, ask, monkeypatch) -> None:
    whole = ask().json()["choices"]
    with monkeypatch.context() as patch:
        patch.setattr(server[1].model.policy, "_decode", lambda: 1 / 0)
        broken = ask()
        assert (broken.status_code, broken.json()["error"]["type"]) == (500, "server_error")
        url = f"{server[0].base_url}/chat/completions"
        events: list[str] = []
        with (
            pytest.raises(httpx.RemoteProtocolError),
            httpx.stream("POST", url, json=ASKED | {"stream": True}) as stream,
        ):
            for line in stream.iter_lines():
                events.append(line)
        assert any("ZeroDivisionError" in event for event in events)
    assert ask().json()["choices"] == whole


class Letters:
    """A renderer of one character per byte of UTF-8, whose tokens are bytes."""

    @staticmethod
    def text(ids: list[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")


@pytest.mark.parametrize("stops", [[], ["ß"], ["nd "], [" end", "x y"]])
def test_parts_of_an_answer_join_to_its_text(stops) -> None:
    text = "Grüße, 你好 and  the\nen end x y"
    shown: list[str] = []
    tokens: list[tuple[int, float]] = []
    reader = AnswerReader(
        Letters(),  # pyrefly: ignore[bad-argument-type]
        stops,
        lambda part, more: (shown.append(part), tokens.extend(more)),
    )
    for token in text.encode():
        if reader.read(token, -1.0):
            break
    reader.end()
    ends = [text.index(stop) for stop in stops]
    assert "".join(shown) == reader.text == text[: min(ends, default=None)]
    assert len(shown) > 2 and all("\ufffd" not in part for part in shown)
    assert tokens == reader.tokens[: len(tokens)]


def test_frames_are_read_as_they_were_sent() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(frame).save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    message = ChatMessage.model_validate(user("a", url))
    [observation] = read_chat([message]).observations
    assert observation["text"] == "a<image>"
    assert (observation["images"][0] == frame).all()
