"""What tokens cost, and the stop before it is too much."""

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
"""Tokens that a price is for."""
_VENDORS = {"openai": ("openai", "openai-responses"), "together_ai": ("together",)}
"""What LiteLLM's vendors are called in specifications, where it is not the same."""


class Price(Section):
    """Of one model, per million tokens."""

    input: float = Field(ge=0.0)
    """Tokens of prompts, those of images included."""
    output: float = Field(ge=0.0)
    """Tokens of answers, those of hidden reasoning included."""
    cached_input: float | None = Field(default=None, ge=0.0)
    """Tokens of prompts that came from the endpoint's cache; null is `input`."""
    image: float | None = Field(default=None, ge=0.0)
    """Tokens of images, where the endpoint tells them apart; null is `input`."""

    def of(self, tokens: TokenUsage) -> float:
        """What tokens cost."""
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
    """A file of prices, which its owner keeps."""

    version: str
    """Of the prices, e.g. the day on which they were looked up; tables say it."""
    currency: str = "USD"
    """Its sign."""
    models: dict[str, Price]
    """By specification (`openai:gpt-x`), with or without the address after `@`."""

    def price(self, model: str) -> Price | None:
        """Of a model, by its specification; None if the file has none."""
        return self.models.get(model) or self.models.get(model.partition("@http")[0])


def load_prices(source: str | dict[str, Any] | None) -> Prices:
    """The price file, or what would be in it; without one there are no prices.

    Raises:
        ConfigError: It cannot be used; names the line.
    """
    if source is None:
        return Prices(version="none", models={})
    if source == "litellm":
        return _prices_of_litellm()
    document = prices_file(source) if isinstance(source, str) else from_one_place(source, "prices")
    return validate(Prices, document.tree, lambda key: document.places.get(key, str(source)))


def prices_file(path: str) -> Document:
    """What is in it, unchecked.

    Raises:
        ConfigError: It is not there, or no YAML.
    """
    if not Path(path).is_file():
        raise ConfigError(f"there is no price file {path}")
    return read_yaml(Path(path))


def _prices_of_litellm() -> Prices:
    """What LiteLLM knows: its `anthropic/x` is `anthropic:x` here, and `litellm:anthropic/x`."""
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
    """The next request might cost more than there is left; nothing is wrong."""


@dataclass(slots=True)
class Budget:
    """What an evaluation may cost, all its rows together."""

    max_cost: float | None = None
    max_tokens: int | None = None
    cost: float = 0.0
    tokens: int = 0
    _reserved: dict[int, tuple[float, int]] = field(default_factory=dict)
    _waiting: list["asyncio.Future[None]"] = field(default_factory=list)
    _next: int = 0

    async def reserve(self, most: Callable[[], TokenUsage], price: Price | None) -> int:
        """Sets aside what a request may take; waits where those under way leave too little.

        Args:
            most: Tells what it may take at most, as far as is known at the time.
            price: Of the model.

        Returns:
            What `settle` is called with.

        Raises:
            BudgetSpent: There is not so much left.
        """
        while True:
            tokens = most()
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
        """The request is over, and what it took was added."""
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
        """Adds what was taken."""
        self.cost += price.of(tokens) if price else 0.0
        self.tokens += tokens.total
