"""The HTTP interface of environments: typed and batched, for several clients."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

import orjson
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from vagen.envs.registry import get_environment
from vagen.service import messages as m
from vagen.service.limits import ClientTokens, Intake
from vagen.service.sessions import Backend, Failed, ReplyContent, ServiceMetrics, Sessions, failure
from vagen.service.settings import ServiceSettings

_SWEEP_SECONDS = 5.0

_refusals: dict[int | str, dict[str, Any]] = {
    400: {"model": m.Problem, "description": "The body is not JSON."},
    401: {"model": m.Problem, "description": "No valid token."},
    408: {"model": m.Problem, "description": "It did not arrive completely in time."},
    413: {"model": m.Problem, "description": "Too large, or too many sessions in one request."},
    422: {"model": m.Problem, "description": "The request is not as described."},
    503: {"model": m.Problem, "description": "Busy or draining: try again after `Retry-After`."},
}


class Service:
    """Shared state of the application's routes."""

    def __init__(self, settings: ServiceSettings):
        """Prepares the service without spawning workers.

        Raises:
            TokenError: The file of tokens cannot be used.
        """
        self.settings = settings
        self.tokens = ClientTokens(settings.tokens_file)
        self.metrics = ServiceMetrics()
        self.backend = Backend(settings, on_replace=self.metrics.worker_deaths.inc)
        self.sessions = Sessions(settings, self.backend, self.metrics)
        self.draining = False
        self.started = False
        self.metrics.pending.set_function(lambda: self.sessions.pending)

    @asynccontextmanager
    async def running(self, _: FastAPI) -> AsyncIterator[None]:
        """Starts the workers with the application, and ends them with it."""
        await self.backend.start()
        sweeping = asyncio.ensure_future(self._sweep())
        self.started = True
        yield
        sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await sweeping
        await self.sessions.close_all()
        await self.backend.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, self.settings.idle_seconds / 4))
            await self.sessions.sweep()

    def admit(self, operation: str, count: int) -> None:
        """Admits a request for this number of sessions.

        Raises:
            HTTPException: The request is too large, or the service is too busy.
        """
        if count > self.settings.max_batch:
            self.metrics.refused.labels("batch").inc()
            raise HTTPException(
                413, f"a request may hold {self.settings.max_batch} sessions, not {count}"
            )
        if self.sessions.pending + count > max(self.settings.max_pending, count):
            raise self._later("busy", f"{self.sessions.pending} calls wait already")
        if self.draining and operation == "create":
            raise self._later("draining", "the service is about to end: open sessions elsewhere")

    def _later(self, reason: str, text: str) -> HTTPException:
        self.metrics.refused.labels(reason).inc()
        return HTTPException(503, text, headers={"Retry-After": "1"})

    async def batch(
        self,
        operation: str,
        client: str,
        orders: Sequence[Any],
        call: Callable[[str, Any], Awaitable[ReplyContent]],
    ) -> Response:
        """Executes a call for each order of a request; results are in order."""
        self.admit(operation, len(orders))

        async def answered(order: Any) -> ReplyContent:
            try:
                return await call(client, order)
            except Failed as error:
                key = order if isinstance(order, str) else order.session
                return failure(key, error.kind, str(error))

        begun = time.perf_counter()
        results = await asyncio.gather(*map(answered, orders))
        self.metrics.requests.labels(operation).observe(time.perf_counter() - begun)
        # Results are plain JSON types: building pydantic models again would dominate the cost.
        return Response(orjson.dumps({"results": results}), media_type="application/json")


def make_app(settings: ServiceSettings) -> FastAPI:
    """The application.

    Raises:
        TokenError: The file of tokens cannot be used.
    """
    service = Service(settings)
    app = FastAPI(
        title="VAGEN environments",
        version="1",
        description="Environments of vision-language agents: text in, text and pictures out.",
        lifespan=service.running,
        docs_url="/docs",
        redoc_url=None,
    )
    app.state.service = service
    app.add_middleware(
        Intake, settings=settings, is_known=lambda header: service.tokens.client(header) is not None
    )
    app.add_exception_handler(RequestValidationError, _refuse_invalid)
    _add_sessions(app, service)
    _add_state(app, service)
    return app


def _client_of(service: Service) -> Callable[..., Awaitable[str]]:
    scheme = HTTPBearer(auto_error=False, description="The client's token.")

    async def client(
        request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(scheme)]
    ) -> str:
        name = service.tokens.client(request.headers.get("authorization"))
        if name is None:
            service.metrics.refused.labels("token").inc()
            raise HTTPException(
                401,
                "a valid token is needed: `Authorization: Bearer ...`",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return name

    return client


def _add_sessions(app: FastAPI, service: Service) -> None:
    caller = Depends(_client_of(service))
    sessions = service.sessions

    @app.post("/v1/sessions", response_model=m.Results[m.Created], responses=_refusals)
    async def create(request: m.CreateRequest, client: str = caller) -> Response:
        """Opens sessions; does not change open ones."""
        return await service.batch("create", client, request.sessions, sessions.create)

    @app.post("/v1/sessions/reset", response_model=m.Results[m.ResetAnswer], responses=_refusals)
    async def reset(request: m.ResetRequest, client: str = caller) -> Response:
        """Starts episodes."""
        return await service.batch("reset", client, request.resets, sessions.reset)

    @app.post("/v1/sessions/step", response_model=m.Results[m.StepAnswer], responses=_refusals)
    async def step(request: m.StepRequest, client: str = caller) -> Response:
        """Steps sessions with responses of the model."""
        return await service.batch("step", client, request.steps, sessions.step)

    @app.post("/v1/sessions/expert", response_model=m.Results[m.ExpertAnswer], responses=_refusals)
    async def expert(request: m.SessionsRequest, client: str = caller) -> Response:
        """Optimal responses for the current observations."""
        return await service.batch("expert", client, request.sessions, sessions.expert)

    @app.post("/v1/sessions/summary", response_model=m.Results[m.ExpertAnswer], responses=_refusals)
    async def summary(request: m.SessionsRequest, client: str = caller) -> Response:
        """The expert's summaries of what sessions have shown."""
        return await service.batch("summary", client, request.sessions, sessions.summary)

    @app.post("/v1/sessions/close", response_model=m.Results[m.SessionReply], responses=_refusals)
    async def close(request: m.SessionsRequest, client: str = caller) -> Response:
        """Closes sessions; ignores closed ones."""
        return await service.batch("close", client, request.sessions, sessions.close)

    @app.get("/v1/sessions", responses={401: _refusals[401]})
    async def list_sessions(client: str = caller) -> m.SessionList:
        """The client's sessions, which it may continue after a lost connection."""
        return m.SessionList(sessions=sessions.of(client))

    @app.get("/v1/environments", responses={401: _refusals[401]})
    async def list_environments(client: str = caller) -> m.EnvironmentList:
        """Served environments, and the options of each."""
        return m.EnvironmentList(
            environments=[
                m.EnvironmentInfo(
                    env_name=name, options=get_environment(name).config_class.model_json_schema()
                )
                for name in sessions.served
            ]
        )


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/healthz")
    async def healthz() -> m.Health:
        """Liveness of the process."""
        return m.Health(status="draining" if service.draining else "ok")

    @app.get("/readyz", responses={503: {"model": m.Health, "description": "Not ready."}})
    async def readyz(response: Response) -> m.Health:
        """Whether new sessions can be opened."""
        if service.draining:
            response.status_code = 503
            return m.Health(status="draining")
        if not service.started or not service.backend.ready:
            response.status_code = 503
            return m.Health(status="starting")
        return m.Health(status="ok")

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


async def _refuse_invalid(_: Request, error: Exception) -> Response:
    """Describes an invalid request without repeating its content, which JSON may not allow."""
    assert isinstance(error, RequestValidationError)
    detail = mistakes(error)
    return Response(orjson.dumps({"detail": detail}), 422, media_type="application/json")


def mistakes(error: RequestValidationError) -> str:
    """The mistakes of a request, at most ten, without its content."""
    lines = [
        f"{'.'.join(str(part) for part in mistake['loc'])}: {mistake['msg']}"
        for mistake in error.errors()[:10]
    ]
    return "; ".join(lines).encode("utf-8", "replace").decode()
