"""Vendors' APIs through LiteLLM (`pip install "vagen[litellm]"`)."""

import os
from dataclasses import dataclass, field
from typing import Any

from vagen.clients.chat import Body, ChatReply, read_completion, tokens_of
from vagen.clients.client import Client
from vagen.clients.errors import EndpointError, NoAnswerError, Reason
from vagen.clients.http import ConfigLocation, short_words


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
    library.telemetry = False
    return library


@dataclass(slots=True)
class LiteLLMChat:
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

    async def reply(self, body: Body) -> ChatReply:
        """See `Chat`."""

        async def attempt() -> ChatReply:
            try:
                found = await self.client.send(lambda: self._request(body))
            except NoAnswerError:
                raise
            except Exception as error:  # any failure of a vendor's library
                raise self._failure(error) from None
            return read_completion(found.model_dump(), self.secret)

        return await self.client.ask(attempt, tokens=tokens_of(body))

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
