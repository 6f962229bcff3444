"""Hosted models by their specification: `VENDOR:MODEL` or `VENDOR:MODEL@ADDRESS`.

A vendor is one line of `VENDORS`. Those without OpenAI's chat completions are asked through LiteLLM
(`pip install "vagen[litellm]"`).
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from vagen.clients.chat import Body, Chat, ChatReply, OpenAIChat, read_completion
from vagen.clients.client import Client
from vagen.clients.errors import EndpointError, NoAnswerError, Reason
from vagen.clients.http import ConfigLocation, HttpEndpoint, short_words
from vagen.config.base import ConfigError
from vagen.config.errors import unknown_name


def litellm() -> Any:
    """Imports the library without its download of prices.

    Raises:
        EndpointError: It is not installed.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm as library
    except ImportError as error:
        raise EndpointError(
            f'models of this vendor need LiteLLM: pip install "vagen[litellm]" ({error})'
        ) from None
    library.suppress_debug_info = True
    return library


@dataclass(slots=True)
class LiteLLMChat(Chat):
    """Client of a LiteLLM model, by its name there: `anthropic/MODEL`."""

    client: Client
    place: ConfigLocation
    base_url: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    secret: str | None = field(init=False, repr=False)
    _library: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.secret = self.place.read_secret()
        self._library = litellm()

    async def complete(self, body: Body) -> ChatReply:
        """See `Chat`."""
        try:
            found = await self.client.send(lambda: self._request(body))
        except NoAnswerError:
            raise
        except Exception as error:  # any failure of a vendor's library
            raise self._failure(error) from None
        return read_completion(found.model_dump(), self.secret)

    async def probe(self) -> None:
        """Does nothing: only LiteLLM knows a vendor's address."""

    async def close(self) -> None:
        """Closes the connections."""
        await self._library.close_litellm_async_clients()

    def _request(self, body: Body) -> Any:
        return self._library.acompletion(
            **body,
            # Without a key, LiteLLM would send the vendor's to any address.
            api_key=self.secret or (None if self.base_url is None else "none"),
            api_base=self.base_url,
            timeout=self.client.config.timeout,
            num_retries=0,
            max_retries=0,
            drop_params=True,
            extra_headers=self.headers or None,
        )

    def _failure(self, error: Exception) -> Exception:
        """The error for a failure of the library."""
        words = short_words(f"{type(error).__name__}: {error}", self.secret)
        kinds = self._library.exceptions
        if isinstance(error, kinds.Timeout):
            return NoAnswerError(Reason.TIMEOUT)
        if isinstance(error, kinds.APIConnectionError):
            return NoAnswerError(Reason.UNREACHABLE, words)
        if isinstance(error, kinds.APIResponseValidationError):
            return NoAnswerError(Reason.INVALID, words)
        status = getattr(error, "status_code", None)
        if not isinstance(status, int) or status == 200:
            return NoAnswerError(Reason.INVALID, words)
        headers = getattr(error, "litellm_response_headers", None)
        if headers is None:
            headers = getattr(getattr(error, "response", None), "headers", None) or {}
        return self.place.failure(status, words, headers.get("retry-after"))


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
LOCAL = ("gguf", "pip", "smolvlm", "tiny")
"""Sources of local models that are written in the same way (`vagen.models`)."""
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

    def key_variable(self, given: str | None) -> str | None:
        """Environment variable of its key; a vendor's key is not sent to other addresses."""
        return given or (None if self.elsewhere else self.vendor.api_key_env)

    def chat(
        self,
        client: Client,
        section: str,
        *,
        api_key_env: str | None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Chat:
        """A client of the model.

        Args:
            client: Its limits.
            section: Dotted key of its options, for messages.
            api_key_env: Environment variable of the key; None takes the vendor's.
            headers: HTTP headers added to every request.

        Raises:
            EndpointError: Its key's environment variable is not set, or its library is not
                installed.
        """
        where = self.address or f"the vendor of {self.name}"
        place = ConfigLocation(where, self.model, section, self.key_variable(api_key_env))
        if self.vendor.prefix is not None:
            return LiteLLMChat(client, place, self.address, dict(headers))
        return OpenAIChat(client, HttpEndpoint(client, place, headers))


def parse_spec(spec: str) -> Hosted | None:
    """The hosted model of a specification; None for other policies.

    Raises:
        ConfigError: The vendor is unknown or the model has no name.
    """
    found = _HOSTED.match(spec)
    if found is None or found["vendor"] in LOCAL:
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


def hosted_at(model: str, address: str | None) -> Hosted:
    """A model at an OpenAI-compatible address, or of a vendor by its specification.

    Raises:
        ConfigError: There is no address, and the model names no vendor.
    """
    if address is not None:
        return Hosted(Vendor(None, None), model, address.rstrip("/"))
    if (found := parse_spec(model)) is None:
        raise ConfigError(f"model {model!r} has no address: give one, or write VENDOR:MODEL")
    return found
