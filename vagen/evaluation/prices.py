"""Prices of tokens, and a limit of costs."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from vagen.clients.chat import TokenUsage
from vagen.config.base import ConfigError, Section
from vagen.config.errors import validate
from vagen.config.layers import from_one_place
from vagen.config.yaml_io import Document, read_yaml

_UNIT = 1_000_000
"""Number of tokens per price."""
_VENDORS = {"openai": ("openai", "openai-responses"), "together_ai": ("together",)}
"""Vendor names of LiteLLM where they differ from specifications."""


class Price(Section):
    """Prices of one model, per million tokens."""

    input: float = Field(ge=0.0)
    """Prompt tokens, including images."""
    output: float = Field(ge=0.0)
    """Output tokens, including hidden reasoning."""
    cached_input: float | None = Field(default=None, ge=0.0)
    """Prompt tokens from the endpoint's cache; null is `input`."""
    image: float | None = Field(default=None, ge=0.0)
    """Image tokens, where the endpoint reports them; null is `input`."""

    def of(self, tokens: TokenUsage) -> float:
        """Cost of tokens."""
        cached = self.input if self.cached_input is None else self.cached_input
        image = self.input if self.image is None else self.image
        text = max(tokens.input - tokens.cached - tokens.image, 0)
        parts = (
            text * self.input,
            tokens.cached * cached,
            tokens.image * image,
            tokens.output * self.output,
        )
        return sum(parts) / _UNIT


class Prices(Section):
    """A file of prices."""

    version: str
    """Version of the prices, e.g. their date; shown in tables."""
    currency: str = "USD"
    """Currency symbol or code."""
    models: dict[str, Price]
    """Prices by specification (`openai:gpt-x`), with or without the address after `@`."""

    def price(self, model: str) -> Price | None:
        """Price of a specification; None if the file has none."""
        return self.models.get(model) or self.models.get(model.partition("@http")[0])


def load_prices(source: str | dict[str, Any] | None) -> Prices:
    """Reads the price file or its content; empty for None.

    Raises:
        ConfigError: It is invalid; the message names the line.
    """
    if source is None:
        return Prices(version="none", models={})
    if source == "litellm":
        return _prices_of_litellm()
    document = prices_file(source) if isinstance(source, str) else from_one_place(source, "prices")
    return validate(Prices, document.tree, lambda key: document.places.get(key, str(source)))


def prices_file(path: str) -> Document:
    """Content of the price file, unchecked.

    Raises:
        ConfigError: It does not exist, or is not YAML.
    """
    if not Path(path).is_file():
        raise ConfigError(f"there is no price file {path}")
    return read_yaml(Path(path))


def _prices_of_litellm() -> Prices:
    """LiteLLM's prices; its `anthropic/x` is `anthropic:x` here, and `litellm:anthropic/x`."""
    import importlib.metadata

    from vagen.clients.vendors import litellm

    models = {}
    for name, facts in litellm().model_cost.items():
        if facts.get("input_cost_per_token") is None:
            continue
        price = Price(
            input=_UNIT * facts["input_cost_per_token"],
            output=_UNIT * (facts.get("output_cost_per_token") or 0.0),
            cached_input=_UNIT * facts["cache_read_input_token_cost"]
            if facts.get("cache_read_input_token_cost") is not None
            else None,
        )
        vendor = str(facts.get("litellm_provider"))
        model = name.removeprefix(f"{vendor}/")
        for here in _VENDORS.get(vendor, (vendor,)):
            models[f"{here}:{model}"] = price
        models[f"litellm:{name}"] = models[f"litellm:{vendor}/{model}"] = price
    return Prices(version=f"litellm {importlib.metadata.version('litellm')}", models=models)


class BudgetExceeded(Exception):
    """The next request might exceed the budget."""


@dataclass(slots=True)
class Budget:
    """The budget of an evaluation, shared by all rows."""

    max_cost: float | None = None
    max_tokens: int | None = None
    cost: float = 0.0
    tokens: int = 0
    _reserved: dict[int, tuple[float, int]] = field(default_factory=dict)
    _waiting: list["asyncio.Future[None]"] = field(default_factory=list)
    _next: int = 0

    async def reserve(self, estimate: Callable[[], TokenUsage], price: Price | None) -> int:
        """Reserves the cost of a request; waits while pending requests reserve too much.

        Args:
            estimate: Returns the request's maximum usage as currently estimated.
            price: Price of the model.

        Returns:
            Argument for `settle`.

        Raises:
            BudgetExceeded: The budget is too small.
        """
        while True:
            tokens = estimate()
            cost = price.of(tokens) if price else 0.0
            if not self._has_room(cost, tokens.total):
                raise BudgetExceeded
            costs = cost + sum(each for each, _ in self._reserved.values())
            count = tokens.total + sum(each for _, each in self._reserved.values())
            if self._has_room(costs, count):
                break
            self._waiting.append(asyncio.get_running_loop().create_future())
            await self._waiting[-1]
        self._next += 1
        self._reserved[self._next] = (cost, tokens.total)
        return self._next

    def settle(self, reservation: int) -> None:
        """Releases the reservation of a finished request, after `add`."""
        del self._reserved[reservation]
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _has_room(self, cost: float, tokens: int) -> bool:
        return (self.max_cost is None or self.cost + cost <= self.max_cost) and (
            self.max_tokens is None or self.tokens + tokens <= self.max_tokens
        )

    def add(self, tokens: TokenUsage, price: Price | None) -> None:
        """Adds actual usage."""
        self.cost += price.of(tokens) if price else 0.0
        self.tokens += tokens.total
