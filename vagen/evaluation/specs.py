"""Specifications of policies for `--model`.

`expert`, `random`, `blind`; `VENDOR:MODEL` or `VENDOR:MODEL@ADDRESS` for a hosted model; otherwise
a run, a model directory or a hub id.
"""

import re
from dataclasses import dataclass
from typing import Any

from vagen.clients import Client, ConfigLocation, HttpEndpoint
from vagen.clients.chat import Chat, OpenAIChat
from vagen.clients.vendors import LiteLLMChat
from vagen.config.base import ConfigError
from vagen.config.errors import unknown_name
from vagen.config.evaluation_options import EndpointConfig

SCRIPTED = {
    "expert": "the environment's own expert",
    "random": "some answer of the expert's, at random",
    "blind": "the one answer that wins most when it is always given",
}


@dataclass(frozen=True, slots=True)
class Vendor:
    """A host of models."""

    prefix: str | None
    """LiteLLM's prefix of model names; None for a plain OpenAI-compatible endpoint."""
    api_key_env: str | None
    address: str | None = None
    """Default address; None leaves it to LiteLLM."""
    limit_name: str = "max_tokens"
    """Parameter name of the token limit."""
    per_customer: bool = False
    """Whether each customer has an address, so that a given one still belongs to the vendor."""


VENDORS = {
    "openai": Vendor(
        None, "OPENAI_API_KEY", "https://api.openai.com/v1", limit_name="max_completion_tokens"
    ),
    "openai-responses": Vendor("openai/responses/", "OPENAI_API_KEY"),
    "anthropic": Vendor("anthropic/", "ANTHROPIC_API_KEY"),
    "gemini": Vendor("gemini/", "GEMINI_API_KEY"),
    "azure": Vendor("azure/", "AZURE_API_KEY", per_customer=True),
    "openrouter": Vendor(None, "OPENROUTER_API_KEY", "https://openrouter.ai/api/v1"),
    "together": Vendor(None, "TOGETHER_API_KEY", "https://api.together.xyz/v1"),
    "ollama": Vendor(None, None, "http://127.0.0.1:11434/v1"),
    "litellm": Vendor("", None),
}
_HOSTED = re.compile(r"(?P<vendor>[a-z-]+):(?!//)(?P<model>.*?)(?:@(?P<address>https?://.+))?\Z")


@dataclass(frozen=True, slots=True)
class Hosted:
    """A hosted model."""

    vendor: Vendor
    model: str
    """The vendor's name of the model."""
    address: str | None

    @property
    def elsewhere(self) -> bool:
        """Whether its address does not belong to the vendor."""
        vendor = self.vendor
        return not vendor.per_customer and self.address not in (None, vendor.address)

    @property
    def limit_name(self) -> str:
        """The endpoint's parameter name of the token limit; `max_tokens` for other servers."""
        return "max_tokens" if self.elsewhere else self.vendor.limit_name

    @property
    def name(self) -> str:
        """Name of the model in requests."""
        return f"{self.vendor.prefix or ''}{self.model}"

    def key_variable(self, options: EndpointConfig) -> str | None:
        """Environment variable of its key; a vendor's key is not sent to other addresses."""
        return options.api_key_env or (None if self.elsewhere else self.vendor.api_key_env)

    def chat(self, options: EndpointConfig, spec: str) -> Chat:
        """A client of the model.

        Raises:
            EndpointError: Its key's environment variable is not set, or its library is not
                installed.
        """
        where = self.address or f"the vendor of {spec}"
        place = ConfigLocation(where, self.model, "eval.endpoint", self.key_variable(options))
        client = Client(options)
        if self.vendor.prefix is not None:
            return LiteLLMChat(client, place, self.address, dict(options.headers))
        return OpenAIChat(client, HttpEndpoint(client, place, options.headers))


def parse_spec(spec: str) -> Hosted | None:
    """The hosted model of a specification; None for other policies.

    Raises:
        ConfigError: The vendor is unknown or the model has no name.
    """
    found = _HOSTED.match(spec)
    if found is None:
        return None
    name, model, address = found["vendor"], found["model"], found["address"]
    if name not in VENDORS:
        raise ConfigError(f"model {spec!r}: {unknown_name('vendor', name, VENDORS)}")
    if not model:
        raise ConfigError(
            f"model {spec!r} has no name: write {name}:MODEL, or {name}:MODEL@http://host:8000/v1"
        )
    vendor = VENDORS[name]
    return Hosted(vendor, model, (address or vendor.address or "").rstrip("/") or None)


def endpoint_options(common: EndpointConfig, own: dict[str, Any], label: str) -> EndpointConfig:
    """The options of one model: its own override the common ones."""
    from vagen.config.errors import validate

    place = f"models: endpoint of {label}"
    return validate(EndpointConfig, common.model_dump() | own, lambda _: place)
