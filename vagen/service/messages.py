"""Requests and answers of the HTTP interface, as OpenAPI shows them."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

from vagen.service.wire import whole_text

SessionKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{16,64}$")]
"""Chosen by the client, at random: anyone who has it and the token may use the session."""
Sequence = Annotated[int, Field(ge=1, le=2**53 - 1)]
ErrorKind = Literal["invalid", "environment", "lost", "unknown", "conflict", "full"]
"""`invalid`: no such environment or option; `environment`: it raised; `lost`: its process died;
`unknown`: no such session of this client, or no longer; `conflict`: the sequence number is neither
the last one nor the next; `full`: no session is free, try again later."""


class Message(BaseModel):
    """A part of a request; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class SessionOrder(Message):
    """A session to open."""

    session: SessionKey
    """Key of the new session; opening one that is open again changes nothing."""
    env_name: Annotated[str, Field(min_length=1, max_length=200)]
    """Name of the environment."""
    env_config: dict[str, JsonValue] = {}
    """Its options."""
    split: Literal["train", "val", "test"] = "train"
    """Which levels it draws from."""


class ResetOrder(Message):
    """An episode to begin."""

    session: SessionKey
    sequence: Sequence
    """1 for the session's first reset or step, then one more each time. The last one may be
    repeated: it is answered again and not carried out twice."""
    seed: Annotated[int, Field(ge=0, le=2**53 - 1)]
    """The seed of the level."""
    options: dict[str, JsonValue] | None = None


class StepOrder(Message):
    """A response to carry out."""

    session: SessionKey
    sequence: Sequence
    """See `ResetOrder`."""
    response: Annotated[str, AfterValidator(whole_text)]
    """What the model wrote."""


class CreateRequest(Message):
    """Sessions to open."""

    sessions: Annotated[list[SessionOrder], Field(min_length=1)]


class ResetRequest(Message):
    """Episodes to begin."""

    resets: Annotated[list[ResetOrder], Field(min_length=1)]


class StepRequest(Message):
    """Responses to carry out, each in a session of its own."""

    steps: Annotated[list[StepOrder], Field(min_length=1)]


class SessionsRequest(Message):
    """Keys of sessions."""

    sessions: Annotated[list[SessionKey], Field(min_length=1)]


class Failure(BaseModel):
    """Why a session gave no answer."""

    kind: ErrorKind
    message: str


class SessionReply(BaseModel):
    """What a session answered, or why not."""

    session: str
    error: Failure | None = None


class ObservationMessage(BaseModel):
    """What the agent is shown."""

    text: str
    """Holds `<image>` once per image."""
    images: list[str]
    """PNG in base64."""


class Created(SessionReply):
    """A session that is open."""

    system_prompt: str | None = None


class ResetAnswer(SessionReply):
    """The beginning of an episode."""

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
    """An optimal response, or the expert's summary."""

    response: str | None = None


class CreateResponse(BaseModel):
    """In the order of the request."""

    results: list[Created]


class ResetResponse(BaseModel):
    """In the order of the request."""

    results: list[ResetAnswer]


class StepResponse(BaseModel):
    """In the order of the request."""

    results: list[StepAnswer]


class ExpertResponse(BaseModel):
    """In the order of the request."""

    results: list[ExpertAnswer]


class CloseResponse(BaseModel):
    """In the order of the request; a session that was not open is no mistake."""

    results: list[SessionReply]


class SessionState(BaseModel):
    """A session that is open."""

    session: str
    env_name: str
    sequence: int
    """Number of the last reset or step; 0 before the first."""
    idle_seconds: float


class SessionList(BaseModel):
    """The client's sessions."""

    sessions: list[SessionState]


class EnvironmentInfo(BaseModel):
    """An environment that is served."""

    env_name: str
    options: dict[str, Any]
    """JSON schema of `env_config`."""


class EnvironmentList(BaseModel):
    """What is served."""

    environments: list[EnvironmentInfo]


class Health(BaseModel):
    """Whether the service takes sessions."""

    status: Literal["ok", "starting", "draining"]


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str
