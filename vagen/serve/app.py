"""OpenAI's chat completions over HTTP, from one `ServedModel`."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import orjson
import prometheus_client as prometheus
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from vagen.config.schema import ExperimentConfig
from vagen.rollout.conversation import Conversation, RenderError
from vagen.rollout.types import Sampling
from vagen.serve.agents import ActOrder, Agents, CloseOrder, ResetOrder
from vagen.serve.messages import ChatRequest, RequestError, read_chat
from vagen.serve.model import Answer, ServedModel
from vagen.service.app import mistakes
from vagen.service.limits import ClientTokens, Intake
from vagen.service.settings import ServerSettings

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
Content = dict[str, Any]


class ServeSettings(ServerSettings):
    """Options of `vagen serve`."""

    rows: PositiveInt = 16
    """Answers at a time, decoded side by side; as many finished conversations stay in the cache."""
    wait_seconds: NonNegativeFloat = 0.005
    """Time that a request waits for others, to begin with them."""
    max_pending: PositiveInt = 256
    """Requests at a time, with those that wait; more get 429."""
    answer_seconds: PositiveFloat = 300.0
    """Time limit of an answer."""
    context: PositiveInt | None = None
    """Tokens of a conversation with its answer; default: the model's own, at most 8,192."""
    max_sessions: PositiveInt = 64
    """Sessions of a run's agent at a time; more get 429."""
    idle_seconds: PositiveFloat = 1800.0
    """Idle time after which such a session is closed."""
    max_body_bytes: PositiveInt = 16 << 20
    """Maximum size of a request."""
    workers: PositiveInt = 1
    """Processes with the model; `rows`, `max_pending` and `max_sessions` are those of each."""


def problem(status: int, message: str) -> Content:
    """An error in OpenAI's form."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    code = {401: "invalid_api_key", 429: "rate_limit_exceeded"}.get(status)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _fault(error: Exception) -> Content:
    return problem(500, f"{type(error).__name__}: the server's log has more")


class ServeMetrics:
    """Prometheus metrics of one server, in a separate registry."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)
        own: dict[str, Any] = {"registry": self.registry}
        self.pending = prometheus.Gauge("vagen_serve_pending", "Requests without answer.", **own)
        self.responses = prometheus.Counter(
            "vagen_serve_responses", "Responses.", ["status"], **own
        )
        self.tokens = prometheus.Counter(
            "vagen_serve_tokens", "Tokens: prompt, cached (of prompt), answer.", ["kind"], **own
        )
        self.agent = {
            "turns": prometheus.Counter(
                "vagen_agent_turns",
                "Turns of the agent: correct, invalid_action, wrong_layout.",
                ["result"],
                **own,
            ),
            "episodes": prometheus.Counter(
                "vagen_agent_episodes",
                "Closed sessions of the agent: success, failure, unknown.",
                ["result"],
                **own,
            ),
        }
        self.seconds = prometheus.Histogram(
            "vagen_serve_answer_seconds", "Time of an answer.", buckets=_SECONDS, **own
        )


class Server:
    """Shared state of the application's routes."""

    def __init__(
        self,
        model: ServedModel,
        name: str,
        settings: ServeSettings,
        token: str | None = None,
        run: ExperimentConfig | None = None,
        worker: int | None = None,
    ):
        """Prepares the server.

        Args:
            model: The model; closed with the application.
            name: Its name in requests.
            settings: Limits.
            token: The only token, unless the settings name a file of tokens; None for none.
            run: The experiment of a run, whose agent is served; None for a model alone.
            worker: Its number among several, in the names of its sessions.

        Raises:
            TokenError: The token or the file cannot be used.
            ConfigError: The run's agent cannot be served.
        """
        self.model, self.name, self.settings = model, name, settings
        self.tokens = ClientTokens(settings.tokens_file, token)
        self.agents, self.metrics = None, ServeMetrics()
        if run is not None:
            self.agents = Agents(
                run,
                model,
                max_sessions=settings.max_sessions,
                idle_seconds=settings.idle_seconds,
                prefix="" if worker is None else f"{worker}.",
                count=lambda kind, result: self.metrics.agent[kind].labels(result).inc(),
            )
        model.count = lambda kind, number: self.metrics.tokens.labels(kind).inc(number)
        self.begun = int(time.time())
        self._pending = 0
        self.metrics.pending.set_function(lambda: self._pending)

    async def check_client(self, request: Request) -> None:
        """Rejects unknown clients."""
        if self.tokens.client(request.headers.get("authorization")) is None:
            raise RequestError(
                "a valid token is needed as API key: `Authorization: Bearer ...`", 401
            )

    def check_model(self, name: str) -> None:
        """Rejects other models."""
        if name != self.name:
            raise RequestError(f"there is no model {name!r}: this server has {self.name!r}", 404)

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Counts a request, until its answer is begun."""
        if self._pending >= self.settings.max_pending:
            raise RequestError(f"{self._pending} requests wait already: try again later", 429)
        self._pending += 1
        try:
            yield
        finally:
            self._pending -= 1

    async def prompt(self, request: ChatRequest) -> tuple[Conversation, Sampling]:
        """What a request asks of the model."""
        self.check_model(request.model)
        chat = await asyncio.to_thread(read_chat, request.messages)
        prompt = await self.model.prompt(chat)
        room = self.model.context - len(prompt.ids)
        wanted = request.max_completion_tokens or request.max_tokens or room
        if wanted > room:
            raise RequestError(
                f"max_tokens is {wanted}, and the messages leave {room} of {self.model.context} "
                f"tokens: send max_tokens={room} or less, or leave it out"
            )
        sampling = Sampling(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            max_new_tokens=wanted,
            seed=secrets.randbits(63) if request.seed is None else request.seed % 2**63,
        )
        return prompt, sampling

    def begin(self, *arguments: Any, **options: Any) -> "asyncio.Task[Answer]":
        """Begins an answer, see `ServedModel.answer`; it counts until it is done."""

        async def answer() -> Answer:
            begun = time.perf_counter()
            try:
                async with asyncio.timeout(self.settings.answer_seconds):
                    answer = await self.model.answer(*arguments, **options)
            except TimeoutError:
                raise self._late("send a smaller max_tokens") from None
            self.metrics.seconds.observe(time.perf_counter() - begun)
            return answer

        def done(task: "asyncio.Task[Answer]") -> None:
            self._pending -= 1
            if not task.cancelled():
                task.exception()

        self._pending += 1
        task = asyncio.ensure_future(answer())
        task.add_done_callback(done)
        return task

    def stream(self, request: ChatRequest, prompt: Conversation, sampling: Sampling) -> Response:
        """The answer as server-sent events."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[str, Sequence[tuple[int, float]]] | None] = asyncio.Queue()

        def show(text: str, tokens: Sequence[tuple[int, float]]) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, (text, tokens))

        task = self.begin(prompt, sampling, stops=request.stops, show=show)
        task.add_done_callback(lambda _: queue.put_nowait(None))
        frame = self._frame("chat.completion.chunk")
        counted = {"usage": None} if request.stream_options.include_usage else {}

        def chunk(delta: Content, finish: str | None = None, logprobs: Any = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
            return _event({**frame, "choices": [choice], **counted})

        async def events() -> AsyncIterator[bytes]:
            try:
                yield chunk({"role": "assistant", "content": ""})
                while (part := await queue.get()) is not None:
                    text, tokens = part
                    logprobs = self._logprobs(tokens) if request.logprobs else None
                    yield chunk({"content": text}, logprobs=logprobs)
                answer = await task
                yield chunk({}, answer.finish)
                if counted:
                    yield _event({**frame, "choices": [], "usage": _usage(prompt, answer)})
                yield b"data: [DONE]\n\n"
            except RequestError as error:
                yield _event(problem(error.status, str(error)))
            except Exception as error:
                yield _event(_fault(error))
                raise
            finally:
                task.cancel()  # where the client has gone

        return StreamingResponse(events(), media_type="text/event-stream")

    async def complete(
        self, request: ChatRequest, prompt: Conversation, sampling: Sampling, connection: Request
    ) -> Response:
        """The whole answer."""
        task = self.begin(prompt, sampling, stops=request.stops)
        leaving = asyncio.ensure_future(gone(connection.receive))
        try:
            await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                return Response(status_code=499)
            answer = task.result()
        finally:
            task.cancel()
            leaving.cancel()
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": self._logprobs(answer.tokens) if request.logprobs else None,
            "finish_reason": answer.finish,
        }
        frame = self._frame("chat.completion")
        return _json({**frame, "choices": [choice], "usage": _usage(prompt, answer)})

    async def agent(
        self, name: str, work: Callable[[Agents], Coroutine[Any, Any, Any]]
    ) -> Response:
        """The result of a call of the agent, in the model's thread."""
        self.check_model(name)
        if self.agents is None:
            raise RequestError(f"{name!r} is a model alone: serve a run for its agent", 404)
        with self.admitted():
            try:
                async with asyncio.timeout(self.settings.answer_seconds):
                    return _json(await self.model.run(work(self.agents)))
            except TimeoutError:
                raise self._late("reset opens another session") from None

    def _late(self, advice: str) -> RequestError:
        seconds = self.settings.answer_seconds
        return RequestError(f"the answer takes longer than {seconds:g} s: {advice}", 504)

    def described(self) -> Content:
        """The model in OpenAI's form."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.begun,
            "owned_by": "vagen",
            "max_model_len": self.model.context,
        }

    def _frame(self, kind: str) -> Content:
        name = f"chatcmpl-{secrets.token_hex(12)}"
        return {"id": name, "object": kind, "created": int(time.time()), "model": self.name}

    def _logprobs(self, tokens: Sequence[tuple[int, float]]) -> Content:
        tokenizer, content = self.model.processor.tokenizer, []
        for token, logprob in tokens:
            text = tokenizer.decode([token])
            if token != self.model.processor.eos_id:
                own = {"token": text, "logprob": logprob, "bytes": [*text.encode()]}
                content.append({**own, "top_logprobs": []})
        return {"content": content, "refusal": None}


def _usage(prompt: Conversation, answer: Answer) -> Content:
    given, said = len(prompt.ids), len(answer.tokens)
    return {
        "prompt_tokens": given,
        "completion_tokens": said,
        "total_tokens": given + said,
        "prompt_tokens_details": {"cached_tokens": answer.cached},
    }


async def gone(receive: Callable[[], Awaitable[Any]]) -> None:
    """Returns when the client of an ASGI request has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content), status, headers, media_type="application/json")


def refusal(status: int, message: str) -> Response:
    """An error as a response."""
    later = {"Retry-After": "1"}
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: later, 503: later}.get(status)
    return _json(problem(status, message), status, headers)


def _event(content: Content) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"


class Counted:
    """ASGI middleware that counts responses by status."""

    def __init__(self, app: Any, responses: prometheus.Counter) -> None:
        self._app, self._responses = app, responses

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serves one request."""

        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._responses.labels(message["status"]).inc()
            await send(message)

        await self._app(scope, receive, counted)


def make_app(server: Server) -> FastAPI:
    """The application."""

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        yield
        server.model.close()

    app = FastAPI(title="VAGEN model", version="1", lifespan=running, redoc_url=None)
    app.add_middleware(
        Intake,
        settings=server.settings,
        is_known=lambda header: server.tokens.client(header) is not None,
        problem=problem,
    )
    app.add_middleware(Counted, responses=server.metrics.responses)
    caller = [Depends(server.check_client)]

    @app.post("/v1/chat/completions", dependencies=caller)
    async def complete(request: ChatRequest, connection: Request) -> Response:
        """Answers a conversation."""
        with server.admitted():
            prompt, sampling = await server.prompt(request)
        if request.stream:
            return server.stream(request, prompt, sampling)
        return await server.complete(request, prompt, sampling, connection)

    @app.post("/v1/agents/{name}/reset", dependencies=caller)
    async def reset(name: str, order: ResetOrder) -> Response:
        """Opens a session of a run's agent."""
        return await server.agent(name, lambda agents: agents.reset(order))

    @app.post("/v1/agents/{name}/act", dependencies=caller)
    async def act(name: str, order: ActOrder) -> Response:
        """The agent's next actions."""
        return await server.agent(name, lambda agents: agents.act(order))

    @app.post("/v1/agents/{name}/close", dependencies=caller)
    async def close(name: str, order: CloseOrder) -> Response:
        """Closes a session."""
        return await server.agent(name, lambda agents: agents.close(order))

    @app.get("/v1/models", dependencies=caller)
    async def models() -> Response:
        """The model."""
        return _json({"object": "list", "data": [server.described()]})

    @app.get("/v1/models/{name:path}", dependencies=caller)
    async def model(name: str) -> Response:
        """The model, by its name."""
        server.check_model(name)
        return _json(server.described())

    @app.get("/health")
    async def health() -> Content:
        """Liveness of the process."""
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        content = prometheus.generate_latest(server.metrics.registry)
        return Response(content, media_type="text/plain; version=0.0.4")

    @app.exception_handler(RequestError)
    async def refuse(_: Request, error: RequestError) -> Response:
        return refusal(error.status, str(error))

    @app.exception_handler(RenderError)
    async def refuse_messages(_: Request, error: RenderError) -> Response:
        return refusal(400, str(error))

    @app.exception_handler(RequestValidationError)
    async def refuse_invalid(_: Request, error: RequestValidationError) -> Response:
        return refusal(400, mistakes(error))

    @app.exception_handler(404)
    @app.exception_handler(405)
    async def refuse_route(request: Request, error: HTTPException) -> Response:
        where = f"{request.method} {request.url.path}"
        return refusal(error.status_code, f"{where}: {error.detail}, see /docs")

    @app.exception_handler(Exception)
    async def fail(_: Request, error: Exception) -> Response:
        return _json(_fault(error), 500)

    return app
