"""An evaluation of several models on several environments: `vagen eval FILE`."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt

from vagen.config.base import Section
from vagen.config.client_options import ClientConfig


class EndpointConfig(ClientConfig):
    """How a hosted model is asked: sampling where it differs from the experiment's, and limits."""

    api_key_env: str | None = None
    """Environment variable that holds the key; null is the vendor's usual one, and none for an
    address of your own (`openai:MODEL@http://...`)."""
    temperature: float | None = Field(default=None, ge=0.0)
    """null takes the experiment's (`actor_rollout_ref.rollout.val_kwargs`)."""
    max_tokens: PositiveInt | None = None
    """Most tokens of an answer, those of hidden reasoning included; null is the experiment's
    `data.max_response_length`."""
    omit: list[str] = Field(default_factory=list)
    """Fields that are left out of a request because the model refuses them, e.g. `temperature`."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Fields that are added to every request, e.g. `{reasoning_effort: low}`."""
    headers: dict[str, str] = Field(default_factory=dict)
    """HTTP headers that are added to every request."""
    detail: Literal["low", "high", "auto"] | None = None
    """`detail` of every image; null sends none."""
    image_scale: PositiveFloat = 1.0
    """Images are enlarged (or reduced) by this factor, without smoothing."""
    timeout: PositiveFloat = 120.0
    """Seconds for one request."""
    requests_per_minute: PositiveFloat | None = None
    """Most requests per minute; null is no limit."""

    @property
    def request_rate(self) -> float | None:
        """See `ClientConfig`."""
        return None if self.requests_per_minute is None else self.requests_per_minute / 60


class ModelEntry(Section):
    """One row: a model, and what it is called."""

    model: str
    """A specification (docs/evaluation.md), e.g. `anthropic:MODEL`, `expert`, a run's folder."""
    name: str | None = None
    """What the row is called; null is the specification."""
    environments: list[str] | None = Field(default=None, min_length=1)
    """Which ones it plays; null is all."""
    endpoint: dict[str, Any] = Field(default_factory=dict)
    """Options of `endpoint` that are this model's own."""

    @property
    def label(self) -> str:
        """What the row is called."""
        return self.name or self.model


class EvaluationEnvironment(Section):
    """The levels and prompts of one experiment."""

    experiment: str | dict[str, Any]
    """A name under `experiments/`, a file, or a run's folder; or what would be in the file."""
    overrides: list[str] = Field(default_factory=list)
    """Dotted assignments, as on the command line."""


def _entry(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


def _environment(value: Any) -> Any:
    return {"experiment": value} if isinstance(value, str) else value


class EvaluationConfig(Section):
    """Which models play which environments, how often, and what that may cost."""

    name: str = "evaluation"
    """Part of the folder's name."""
    environments: dict[str, Annotated[EvaluationEnvironment, BeforeValidator(_environment)]]
    """By the name that tables give them."""
    matrix: dict[str, list[Any]] = Field(default_factory=dict)
    """Options and the values that each takes: every environment is played with every combination,
    e.g. `{rollout_manager.window_size: [1, 5]}`; `envs.*.` stands for all of an experiment,
    `endpoint.` for how hosted models are asked, e.g. `{endpoint.image_scale: [1, 2]}`."""
    models: list[Annotated[ModelEntry, BeforeValidator(_entry)]]
    """The rows."""
    levels: Literal["test", "val"] = "test"
    """Which levels."""
    count: PositiveInt | None = None
    """How many levels of each environment; null is all of the experiment's."""
    attempts: PositiveInt = 1
    """Episodes on each level."""
    baseline: str | None = None
    """The row that the others are compared with; null is the first."""
    prices: str | dict[str, Any] | None = None
    """File of prices (docs/evaluation.md), or what would be in it; `litellm` takes those that the
    library ships."""
    max_cost: PositiveFloat | None = None
    """What all rows together may cost, in the price file's currency; then nothing more is asked."""
    max_tokens: PositiveInt | None = None
    """Tokens, in and out, that all rows together may take; then nothing more is asked."""
    episodes: PositiveInt = 64
    """Episodes of a hosted model that are played side by side."""
    endpoint: EndpointConfig = EndpointConfig()
