"""Requests and replies of the HTTP interface, as in its OpenAPI schema."""

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

from vagen.service.wire import replace_surrogates

SessionKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{16,64}$")]
"""Random key chosen by the client; key and token give access to the session."""
Sequence = Annotated[int, Field(ge=1, le=2**53 - 1)]
ErrorKind = Literal["invalid", "environment", "lost", "unknown", "conflict", "full"]
"""`invalid`: no such environment or option; `environment`: an error of the environment; `lost`: its
process died; `unknown`: the client has no such session; `conflict`: the sequence number is neither
the last nor the next; `full`: no session is free, retry later."""


class Message(BaseModel):
    """A part of a request; unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class SessionOrder(Message):
    """A session to open."""

    session: SessionKey
    """Key of the new session; opening an open one changes nothing."""
    env_name: Annotated[str, Field(min_length=1, max_length=200)]
    """Name of the environment."""
    env_config: dict[str, JsonValue] = {}
    """Its options."""
    split: Literal["train", "val", "test"] = "train"
    """Split of its levels."""


class ResetOrder(Message):
    """An episode to start."""

    session: SessionKey
    sequence: Sequence
    """1 for the session's first reset or step, then increasing by 1. The last one may be repeated:
    it gets the same reply and is not executed again."""
    seed: Annotated[int, Field(ge=0, le=2**53 - 1)]
    """The seed of the level."""
    options: dict[str, JsonValue] | None = None


class StepOrder(Message):
    """A response to step with."""

    session: SessionKey
    sequence: Sequence
    """See `ResetOrder`."""
    response: Annotated[str, AfterValidator(replace_surrogates)]
    """The model's response."""


class CreateRequest(Message):
    """Sessions to open."""

    sessions: Annotated[list[SessionOrder], Field(min_length=1)]


class ResetRequest(Message):
    """Episodes to start."""

    resets: Annotated[list[ResetOrder], Field(min_length=1)]


class StepRequest(Message):
    """Responses to step with, each in a different session."""

    steps: Annotated[list[StepOrder], Field(min_length=1)]


class SessionsRequest(Message):
    """Keys of sessions."""

    sessions: Annotated[list[SessionKey], Field(min_length=1)]


class Failure(BaseModel):
    """Why a session did not reply."""

    kind: ErrorKind
    message: str


class SessionReply(BaseModel):
    """A session's reply, or its failure."""

    session: str
    error: Failure | None = None


class ObservationMessage(BaseModel):
    """An observation."""

    text: str
    """Text with `<image>` once per image."""
    images: list[str]
    """PNG in base64."""


ReplyT = TypeVar("ReplyT", bound=SessionReply)


class Created(SessionReply):
    """An open session."""

    system_prompt: str | None = None


class ResetAnswer(SessionReply):
    """The start of an episode."""

    observation: ObservationMessage | None = None
    info: dict[str, Any] | None = None
    """`state` and `level_hash`."""


class StepAnswer(SessionReply):
    """The result of a step."""

    observation: ObservationMessage | None = None
    reward: float | None = None
    terminated: bool | None = None
    truncated: bool | None = None
    info: dict[str, Any] | None = None
    """`rewards`, `parsed`, `metrics`, `success`, `state`."""


class ExpertAnswer(SessionReply):
    """An expert's response or summary."""

    response: str | None = None


class Results(BaseModel, Generic[ReplyT]):
    """Replies in the order of the request."""

    results: list[ReplyT]


class SessionState(BaseModel):
    """An open session."""

    session: str
    env_name: str
    sequence: int
    """Sequence number of the last reset or step; 0 before the first."""
    idle_seconds: float


class SessionList(BaseModel):
    """The client's sessions."""

    sessions: list[SessionState]


class EnvironmentInfo(BaseModel):
    """A served environment."""

    env_name: str
    options: dict[str, Any]
    """JSON schema of `env_config`."""


class EnvironmentList(BaseModel):
    """Served environments."""

    environments: list[EnvironmentInfo]


class Health(BaseModel):
    """Whether the service accepts sessions."""

    status: Literal["ok", "starting", "draining"]


class Problem(BaseModel):
    """Why a request was rejected."""

    detail: str
