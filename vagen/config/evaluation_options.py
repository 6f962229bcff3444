"""An evaluation of several models on several environments: `vagen eval FILE`."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt

from vagen.config.base import Section
from vagen.config.client_options import ClientConfig


class EndpointConfig(ClientConfig):
    """How a hosted model is asked: limits, and sampling where it differs from the experiment's."""

    api_key_env: str | None = None
    """Environment variable with the API key; null: the vendor's usual one, or none for an address
    of your own (`openai:MODEL@http://...`)."""
    temperature: float | None = Field(default=None, ge=0.0)
    """Sampling temperature; null takes the experiment's
    (`actor_rollout_ref.rollout.val_kwargs`)."""
    max_tokens: PositiveInt | None = None
    """Maximum tokens of an answer, including hidden reasoning; null takes
    `data.max_response_length`."""
    omit: list[str] = Field(default_factory=list)
    """Request fields to leave out because the model refuses them, such as `temperature`."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Fields added to every request, such as `{reasoning_effort: low}`."""
    headers: dict[str, str] = Field(default_factory=dict)
    """HTTP headers added to every request."""
    detail: Literal["low", "high", "auto"] | None = None
    """`detail` of every image; null sends none."""
    image_scale: PositiveFloat = 1.0
    """Factor by which images are resized, without smoothing."""
    timeout: PositiveFloat = 120.0
    """Timeout of a request, in seconds."""
    requests_per_minute: PositiveFloat | None = None
    """Maximum requests per minute; null is no limit."""

    @property
    def request_rate(self) -> float | None:
        """See `ClientConfig`."""
        return None if self.requests_per_minute is None else self.requests_per_minute / 60


class ModelEntry(Section):
    """One row: a model and its label."""

    model: str
    """A specification (docs/evaluation.md), such as `anthropic:MODEL`, `expert`, or a run's
    folder."""
    name: str | None = None
    """Label of the row; null is the specification."""
    environments: list[str] | None = Field(default=None, min_length=1)
    """Environments that this model plays; null is all."""
    endpoint: dict[str, Any] = Field(default_factory=dict)
    """Options of `endpoint` for this model only."""

    @property
    def label(self) -> str:
        """What the row is called."""
        return self.name or self.model


class EvaluationEnvironment(Section):
    """The levels and prompts of one experiment."""

    experiment: str | dict[str, Any]
    """A name under `experiments/`, a file, a run's folder, or the content of such a file."""
    overrides: list[str] = Field(default_factory=list)
    """Dotted assignments, as on the command line."""


def _entry(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


def _environment(value: Any) -> Any:
    return {"experiment": value} if isinstance(value, str) else value


class EvaluationConfig(Section):
    """Which models play which environments, how often, and the most that it may cost."""

    name: str = "evaluation"
    """Part of the folder's name."""
    environments: dict[str, Annotated[EvaluationEnvironment, BeforeValidator(_environment)]]
    """Environments by the name that tables show."""
    matrix: dict[str, list[Any]] = Field(default_factory=dict)
    """Options and the values that each takes; every environment is played with every combination,
    such as `{rollout_manager.window_size: [1, 5]}`. `envs.*.` means every environment of an
    experiment; `endpoint.` means the options of hosted models."""
    models: list[Annotated[ModelEntry, BeforeValidator(_entry)]]
    """The rows."""
    levels: Literal["test", "val"] = "test"
    """Split of levels to play."""
    count: PositiveInt | None = None
    """Levels per environment; null is all of the experiment's."""
    attempts: PositiveInt = 1
    """Episodes per level."""
    baseline: str | None = None
    """Row that the others are compared with; null is the first."""
    prices: str | dict[str, Any] | None = None
    """Price file (docs/evaluation.md) or its content; `litellm` takes the prices that the library
    ships."""
    max_cost: PositiveFloat | None = None
    """Maximum cost of all rows together, in the price file's currency; requests stop there."""
    max_tokens: PositiveInt | None = None
    """Maximum tokens of all rows together, in and out; requests stop there."""
    episodes: PositiveInt = 64
    """Episodes of a hosted model played in parallel."""
    endpoint: EndpointConfig = EndpointConfig()
