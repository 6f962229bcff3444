"""Batched generation for many conversations, whose key/value caches persist across turns.

Requests come from coroutines, one per trajectory. A server loop feeds the new tokens of each
waiting conversation (prefill), then draws one token per step for all answering ones (decode). The
slots of answering conversations are adjacent, so that a decode step uses a view of the cache
without a copy.

Shape legend: A active rows, n new tokens, P tokens of a prefix, V vocabulary.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image
from torch import Tensor

from vagen.engines.local.graphs import LEAST_REACH, DecodeSteps, rounded
from vagen.engines.local.packing import common_length, text_before_images
from vagen.models.attention import SlotCache
from vagen.models.loading import LanguageModel
from vagen.models.processor import ProcessedImage
from vagen.models.vision import image_inputs
from vagen.rollout.types import Generation, Sampling

PREFILL_SHARE = 0.25
"""Prefill starts once this share of live conversations waits, or if none is answering."""
MIN_SHARED = 0.1
"""A common prefix is attended to at once if it is at least this share of the longest context."""
CAPACITY = 8
"""Maximum number of cached prefixes."""


class Prefixes:
    """Key/value caches of common prompt prefixes, computed once.

    Episodes of an environment share the system prompt; episodes of a level share the first message.
    Only text is shared, as tokens after an image depend on it.
    """

    def __init__(self) -> None:
        self._known: list[tuple[NDArray[np.int32], Tensor]] = []

    def __len__(self) -> int:
        return len(self._known)

    @property
    def full(self) -> bool:
        """Whether the cache is full."""
        return len(self._known) >= CAPACITY

    def add(self, ids: NDArray[np.int32], keys_values: Tensor) -> None:
        """Adds a prefix: ids int32 [P], and the result of `SlotCache.read`."""
        self._known.append((ids, keys_values))

    def clear(self) -> None:
        """Empties the cache, as needed before the weights change."""
        self._known.clear()

    def longest(self, ids: NDArray[np.int32]) -> Tensor | None:
        """Keys and values of the longest cached prefix of `ids`, [..., P, D]; else None."""
        best, best_length = None, 0
        for known, keys_values in self._known:
            reach = min(len(known), len(ids))
            differs = np.flatnonzero(known[:reach] != ids[:reach])
            length = int(differs[0]) if len(differs) else reach
            if length > best_length:
                best, best_length = keys_values, length
        return None if best is None else best[..., :best_length, :]


@dataclass(eq=False)
class _Conversation:
    """A conversation's slot in the cache and its current request."""

    slot: int
    length: int = 0
    """Tokens in the cache."""
    position: int = 0
    """First unused rotary position."""
    ids: list[int] = field(default_factory=list)
    """Token ids in the cache, without the last sampled one."""
    images: int = 0
    pending: list[int] = field(default_factory=list)
    """Ids to feed next."""
    pending_images: list[ProcessedImage] = field(default_factory=list)
    beginning: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """Text of the first prompt up to its first image."""
    sampling: Sampling = field(default_factory=Sampling)
    uniforms: list[float] = field(default_factory=list)
    """One uniform draw in [0, 1) per response token."""
    out: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    until: Callable[[int, float], bool] | None = None
    done: "asyncio.Future[Generation] | None" = None


class LocalPolicy:
    """A `Policy` over a `transformers` model in this process."""

    def __init__(
        self,
        language_model: LanguageModel,
        *,
        slots: int,
        length: int = 512,
        recorded: bool = False,
        prefill_share: float = PREFILL_SHARE,
    ):
        """Prepares a cache.

        Args:
            language_model: Its weights may change between rollouts but not during one.
            slots: Maximum number of live conversations.
            length: Initial number of tokens per slot; grows as needed.
            recorded: Decode in steps of fixed shapes, on a GPU as CUDA graphs.
            prefill_share: Share of the live conversations that must wait before their prompts
                interrupt the others; 0 for none.
        """
        self.language_model = language_model
        self.processor = language_model.processor
        self.device = language_model.device
        self.cache = SlotCache(
            language_model.text_config, slots, length, self.device, language_model.model.dtype
        )
        self.slots = slots
        self._prefill_share = prefill_share
        self._prefixes = Prefixes()
        self._prefix_length = 0
        self._by_id: dict[str, _Conversation] = {}
        self._order: list[_Conversation | None] = [None] * slots
        self._active: list[_Conversation] = []
        self._waiting: list[_Conversation] = []
        self._server: asyncio.Task[None] | None = None
        self._recorded = DecodeSteps(self._recorded_step) if recorded else None
        self.tokens_prefilled = 0

    async def generate(
        self,
        *,
        request_id: str,
        prompt_ids: list[int],
        images: list[Image],
        sampling: Sampling,
        until: Callable[[int, float], bool] | None = None,
    ) -> Generation:
        """Continues a prompt; computes only tokens that are not in the cache.

        `until` gets every sampled token with its log-probability, and ends the response with True.

        Raises:
            ValueError: The prompt does not extend the cached one of `request_id`, or there are more
                live conversations than slots.
        """
        conversation = self._by_id.get(request_id) or self._open(request_id)
        known = conversation.ids
        if prompt_ids[: len(known)] != known or len(prompt_ids) == len(known):
            raise ValueError(f"request {request_id}: the prompt does not continue the cached one")
        conversation.pending = prompt_ids[len(known) :]
        conversation.pending_images = [
            self.processor.process_image(image) for image in images[conversation.images :]
        ]
        conversation.images = len(images)
        conversation.sampling = sampling
        draws = np.random.Generator(np.random.Philox(key=sampling.seed))
        conversation.uniforms = draws.random(sampling.max_new_tokens).tolist()
        conversation.out, conversation.logprobs, conversation.until = [], [], until
        conversation.done = asyncio.get_running_loop().create_future()
        self._waiting.append(conversation)
        if self._server is None or self._server.done():
            self._server = asyncio.ensure_future(self._serve())
            # The task raises on Ctrl-C and nothing awaits it then: retrieve the exception.
            self._server.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await conversation.done

    def release(self, request_id: str) -> None:
        """Frees the conversation's slot and drops its pending request."""
        conversation = self._by_id.pop(request_id, None)
        if conversation is not None:
            if conversation in self._waiting:
                self._waiting.remove(conversation)
            if conversation in self._active:
                self._retire(conversation)
            self._order[conversation.slot] = None
        if not self._by_id:
            self._prefixes.clear()

    def _open(self, request_id: str) -> _Conversation:
        try:
            slot = self._order.index(None)
        except ValueError:
            raise ValueError(f"all {self.slots} slots are taken: release one first") from None
        conversation = _Conversation(slot)
        self._order[slot] = conversation
        self._by_id[request_id] = conversation
        return conversation

    async def _serve(self) -> None:
        """Runs until no conversation waits or answers."""
        try:
            while True:
                await asyncio.sleep(0)
                live = len(self._by_id)
                if self._waiting and (
                    not self._active or len(self._waiting) >= self._prefill_share * live
                ):
                    self._prefill()
                elif self._active:
                    self._decode()
                elif not self._waiting:
                    return
        except Exception as error:  # raised in every waiting caller
            for conversation in [*self._waiting, *self._active]:
                if conversation.done is not None and not conversation.done.done():
                    conversation.done.set_exception(error)
            self._waiting, self._active = [], []

    @torch.inference_mode()
    def _prefill(self) -> None:
        """Feeds the new tokens of every waiting conversation and draws the first response token of
        each.

        Of new conversations with equal prompts only the first is computed; the others get a copy.
        """
        leaders: dict[Any, _Conversation] = {}
        followers = []
        for c in self._waiting:
            prompt = c if c.length else (*c.pending, *map(id, c.pending_images))
            leader = leaders.setdefault(prompt, c)
            if leader is not c:
                followers.append((c, leader))
        batch = list(leaders.values())
        conversations = [*batch, *(c for c, _ in followers)]
        first = len(self._active)
        for offset, conversation in enumerate(conversations):
            self._move(conversation, first + offset)
        self._share_beginnings([c for c in batch if not c.length])
        new = max(len(c.pending) for c in batch)
        ids = torch.full((len(batch), new), self.processor.pad_id, dtype=torch.long)
        positions = torch.zeros(3, len(batch), new, dtype=torch.long)
        images: list[ProcessedImage] = []
        for i, c in enumerate(batch):
            row = np.asarray(c.pending, dtype=np.int32)
            ids[i, : len(row)] = torch.from_numpy(row)
            row_grids = [image.grid for image in c.pending_images]
            place, c.position = self.processor.positions(row, row_grids, c.position)
            positions[:, i, : len(row)] = torch.from_numpy(place)
            images += c.pending_images
            c.pending_images = []
        hidden = self._forward(batch, first, ids, positions, images)
        for c in batch:
            c.length += len(c.pending)
            c.ids += c.pending
            self.tokens_prefilled += len(c.pending)
        rows = {c: i for i, c in enumerate(batch)}
        for c, leader in followers:
            self.cache.copy(leader.slot, c.slot, leader.length)
            c.ids, c.length, c.position = [*leader.ids], leader.length, leader.position
            c.pending, c.pending_images, c.beginning = leader.pending, [], leader.beginning
            rows[c] = rows[leader]
        self._active += conversations
        self._waiting = []
        self._prefix_length = common_length([c.beginning for c in self._active])
        places = torch.tensor(
            [(rows[c], len(c.pending) - 1) for c in conversations], device=self.device
        )
        self._draw(conversations, hidden[places[:, 0], places[:, 1]])

    def _share_beginnings(self, fresh: list[_Conversation]) -> None:
        """Fills the slots of new conversations with their cached common prefix, if there is one.

        A prefix that several conversations share is computed for the first and copied.
        """
        for c in fresh:
            pending = np.asarray(c.pending[:-1], dtype=np.int32)
            text = c.beginning = text_before_images(pending, self.processor.image_ids)
            known = self._prefixes.longest(text)
            length = 0 if known is None else known.shape[-2]
            if 2 * length < len(text) and len(fresh) > 1 and not self._prefixes.full:
                length = len(text)
                ids = torch.from_numpy(text).long()[None]
                self._forward([c], c.slot, ids, torch.arange(length).expand(3, 1, -1), [])
                self._prefixes.add(text, self.cache.read(c.slot, length))
                self.tokens_prefilled += length
            elif known is not None:
                self.cache.write(c.slot, known)
            c.ids, c.pending = c.pending[:length], c.pending[length:]
            c.length = c.position = length

    @torch.inference_mode()
    def _decode(self) -> None:
        """Draws one more token for every answering conversation."""
        batch = list(self._active)
        if self._recorded is not None:
            hidden = self._decode_recorded(batch, self._recorded)
        else:
            ids, positions, _ = self._decode_inputs(batch)
            hidden = self._forward(batch, 0, ids, positions, [], self._prefix_length)
        for c in batch:
            c.ids.append(c.out[-1])
            c.length += 1
            c.position += 1
        self._draw(batch, hidden[:, 0])

    def _decode_inputs(self, rows: Sequence[_Conversation | None]) -> tuple[Tensor, Tensor, Tensor]:
        """Last ids [A, 1], positions [3, A, 1] and lengths [A] of the first slots' conversations.

        A slot without an answering conversation gets a token that is written behind its end.
        """
        values = [
            (0, 0, 0) if c is None else (c.out[-1] if c.out else 0, c.position, c.length)
            for c in rows
        ]
        ids, positions, lengths = torch.tensor(values, device=self.device).unbind(1)
        return ids[:, None], positions[:, None].expand(3, -1, 1), lengths

    def _decode_recorded(self, batch: list[_Conversation], steps: DecodeSteps) -> Tensor:
        """Like `_forward` for one token, with slots and reach rounded up."""
        rows = self._order[: min(self.slots, rounded(len(batch)))]
        need = max(c.length for c in rows if c is not None) + 1
        if need > self.cache.length:
            self.cache.grow(need)
            steps.clear()
        reach = min(self.cache.length, rounded(need, LEAST_REACH))
        return steps(*self._decode_inputs(rows), reach)[: len(batch)]

    def _recorded_step(self, ids: Tensor, positions: Tensor, start: Tensor, reach: int) -> Tensor:
        self.cache.focus(0, len(ids), start, 1, reach)
        return self._hidden(ids, positions, self.cache.masks(start, 1, reach))

    def _hidden(
        self, ids: Tensor, positions: Tensor, masks: dict[str, Any], **inputs: Any
    ) -> Tensor:
        """Hidden states of `ids` [A, n] at rotary positions [3, A, n], in the cache's focus."""
        return self.language_model.hidden(
            input_ids=ids,
            position_ids=positions if self.processor.uses_mrope else positions[0],
            use_cache=True,
            **{self.language_model.cache_name: self.cache},
            **masks,
            **inputs,
        )

    def _forward(
        self,
        batch: list[_Conversation],
        first: int,
        ids: Tensor,
        positions: Tensor,
        images: list[ProcessedImage],
        prefix: int = 0,
    ) -> Tensor:
        """Hidden states [A, n, hidden] of new tokens; adds their keys and values to the cache.

        The first `prefix` cached tokens are equal in all rows of the batch.
        """
        new = ids.shape[1]
        start = torch.tensor([c.length for c in batch], device=self.device)
        reach = max(c.length for c in batch) + new
        if reach > self.cache.length:
            self.cache.grow(reach)
            if self._recorded is not None:
                self._recorded.clear()  # they read the old memory
        self.cache.focus(first, first + len(batch), start, new, reach)
        blocks = None
        if images and self.processor.family.bidirectional:
            numbers = [self.processor.image_ids.numbered(row) for row in ids.numpy()]
            blocks = torch.from_numpy(np.stack(numbers)).to(self.device)
        return self._hidden(
            ids.to(self.device),
            positions.to(self.device),
            self.cache.masks(start, new, reach, blocks),
            prefix=prefix if prefix >= MIN_SHARED * reach else 0,
            **image_inputs(images, self.processor, self.device, self.language_model.model.dtype),
        )

    def _draw(self, batch: list[_Conversation], hidden: Tensor) -> None:
        """Samples a token per row from hidden states [A, hidden]; ends finished conversations."""
        logits = self.language_model.logits(hidden)
        uniforms = torch.tensor(
            [c.uniforms[len(c.out)] for c in batch], dtype=torch.float64, device=self.device
        )
        tokens, logprobs = sample(logits, [c.sampling for c in batch], uniforms)
        eos = self.processor.eos_id
        finished = []
        for c, token, logprob in zip(batch, tokens.tolist(), logprobs.tolist(), strict=True):
            c.out.append(token)
            c.logprobs.append(logprob)
            ends = c.until is not None and c.until(token, logprob)
            if ends or token == eos or len(c.out) == c.sampling.max_new_tokens:
                finished.append(c)
        for c in finished:
            self._retire(c)
            stop = c.out[-1] == eos
            assert c.done is not None
            if not c.done.done():
                c.done.set_result(Generation(c.out, c.logprobs, "stop" if stop else "length"))

    def _retire(self, conversation: _Conversation) -> None:
        """Moves a conversation out of the range of answering slots."""
        last = self._active[-1]
        place = conversation.slot
        self._move(conversation, last.slot)
        self._active[place] = last
        self._active.pop()

    @torch.inference_mode()  # the cache is an inference tensor
    def _move(self, conversation: _Conversation, slot: int) -> None:
        """Moves a conversation to a slot, exchanging places with its occupant."""
        other = self._order[slot]
        if other is conversation:
            return
        if other is None:
            self.cache.copy(conversation.slot, slot, conversation.length)
        else:
            self.cache.swap(conversation.slot, slot, max(conversation.length, other.length))
            other.slot = conversation.slot
        self._order[conversation.slot], self._order[slot] = other, conversation
        conversation.slot = slot


def sample(logits: Tensor, options: list[Sampling], uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draws one token per row by inverting the cumulative distribution.

    Args:
        logits: float32 [A, V]; banned tokens are -inf.
        options: Sampling options of each row.
        uniforms: float64 [A] in [0, 1): a row's draw depends only on its own number.

    Returns:
        Token ids int64 [A], and their log-probabilities float32 [A] at the row's temperature,
        after top-k and top-p (greedy rows: at temperature 1, of all tokens).
    """
    temperatures = torch.tensor(
        [o.temperature if o.temperature > 0 else 1.0 for o in options], device=logits.device
    )
    logprobs = torch.log_softmax(logits / temperatures[:, None], dim=-1)
    probs = logprobs.exp().double()
    cut = [o.temperature > 0 and (o.top_k > 0 or o.top_p < 1) for o in options]
    if any(cut):
        kept = _restrict(probs, options)
        rows = torch.tensor(cut, device=logits.device)[:, None]
        probs = torch.where(rows, kept, probs)
        renormalized = (kept / kept.sum(-1, keepdim=True)).log().to(logprobs.dtype)
        logprobs = torch.where(rows, renormalized, logprobs)
    cumulative = probs.cumsum(-1)
    threshold = uniforms.double()[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, threshold, right=True)[:, 0]
    greedy = [o.temperature == 0 for o in options]
    if any(greedy):
        rows = torch.tensor(greedy, device=logits.device)
        drawn = torch.where(rows, logits.argmax(-1), drawn)
    return drawn, logprobs.gather(-1, drawn[:, None])[:, 0]


def _restrict(probs: Tensor, options: list[Sampling]) -> Tensor:
    """Zeroes the probabilities that top-k and top-p exclude; keeps the most probable token."""
    ordered, order = probs.sort(-1, descending=True)
    rank = torch.arange(probs.shape[-1], device=probs.device)
    top_k = torch.tensor(
        [o.top_k if o.top_k > 0 else probs.shape[-1] for o in options], device=probs.device
    )
    top_p = torch.tensor([o.top_p for o in options], device=probs.device, dtype=probs.dtype)
    before = ordered.cumsum(-1) - ordered
    keep = (rank < top_k[:, None]) & (before < top_p[:, None])
    keep[:, 0] = True
    return torch.zeros_like(probs).scatter(-1, order, ordered * keep)
