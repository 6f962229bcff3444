"""Answers of one model: conversations become prompts, which are decoded together in one thread.

The text of an answer is not always tokenised as it was sampled. The sampled ids of recent answers
are kept, so that a conversation that a client sends back has the context of training and
evaluation, token for token. The caches of recent conversations are kept, too.
"""

import asyncio
import hashlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from vagen.config import InfraConfig
from vagen.engines.local.generation import LocalPolicy
from vagen.engines.make import configure_torch, device_of
from vagen.models.files import check_model
from vagen.models.loading import LanguageModel, load_model
from vagen.rollout.contexts import Contexts
from vagen.rollout.conversation import ChatRenderer, Conversation
from vagen.rollout.types import Generation, Sampling
from vagen.serve.messages import Chat, RequestError
from vagen.service.pool import core_count

ResultT = TypeVar("ResultT")
Show = Callable[[str, Sequence[tuple[int, float]]], None]
"""Gets new text of an answer, and its new tokens with their log-probabilities."""
REMEMBERED = 4096
"""Most recent answers whose ids are kept."""
CONTEXT = 8192
"""Tokens of a conversation with its answer, for models that can read more."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer."""

    text: str
    tokens: Sequence[tuple[int, float]]
    """Ids, with the end-of-turn token if it was sampled, and their log-probabilities."""
    finish: str
    """`stop` or `length`."""
    cached: int
    """Tokens of the prompt that were read from the cache."""


class ServedModel:
    """A model in a thread of its own."""

    def __init__(
        self,
        model: LanguageModel,
        *,
        rows: int = 16,
        context: int | None = None,
        wait_seconds: float = 0.005,
        recorded: bool = False,
        threads: int = 1,
    ):
        """Starts the thread.

        Args:
            model: The model.
            rows: Maximum number of answers at a time; as many finished conversations are cached.
            context: Maximum tokens of a conversation with its answer; None: the model's, at most
                `CONTEXT`.
            wait_seconds: Time that the first of several requests waits for others.
            recorded: See `LocalPolicy`.
            threads: Threads of torch on a CPU.

        Raises:
            RenderError: The model's chat template cannot be used.
        """
        limit = getattr(model.text_config, "max_position_embeddings", None) or CONTEXT
        self.context = context or min(limit, CONTEXT)
        self.processor = model.processor
        self.renderer = ChatRenderer(model.processor)
        self.policy = LocalPolicy(model, slots=2 * rows, recorded=recorded, prefill_share=0.0)
        self.count: Callable[[str, int], None] = lambda *_: None
        """Gets numbers of tokens: `prompt`, `cached` (of it), `answer`."""
        self._room = asyncio.Semaphore(rows)
        self._wait_seconds = wait_seconds
        self._opening: asyncio.Task[None] | None = None
        self._names = map(str, itertools.count())
        self._live = 0
        """Slots in use, with those of `_cached`."""
        self._cached: OrderedDict[str, tuple[list[int], list[str]]] = OrderedDict()
        """Ids and images of finished conversations, the oldest first, by name of their slot."""
        self._sampled: OrderedDict[str, list[int]] = OrderedDict()
        self._loop = asyncio.new_event_loop()
        self._loop.call_soon(torch.set_num_threads, threads)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cancels what is under way, and ends the thread."""

        def stop() -> None:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.call_soon(self._loop.stop)

        self._loop.call_soon_threadsafe(stop)
        self._thread.join()
        self._loop.close()

    def prompt(self, chat: Chat) -> Awaitable[Conversation]:
        """The prompt of a conversation.

        Raises:
            RequestError: The model does not read pictures, or the prompt leaves no room.
            RenderError: The model cannot read the messages.
        """
        return self.run(self._prompt(chat))

    def answer(
        self,
        prompt: Conversation,
        sampling: Sampling,
        *,
        stops: Sequence[str] = (),
        show: Show | None = None,
    ) -> Awaitable[Answer]:
        """The next answer; cancelling it frees its place.

        Args:
            prompt: A result of `prompt`.
            sampling: Sampling options.
            stops: Texts before which it ends.
            show: Called in the model's thread.
        """
        return self.run(self._answer(prompt, sampling, stops, show))

    def run(self, work: Coroutine[Any, Any, ResultT]) -> Awaitable[ResultT]:
        """Runs a coroutine in the model's thread."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _prompt(self, chat: Chat) -> Conversation:
        pictures = any(observation["images"] for observation in chat.observations)
        if pictures and not self.processor.has_vision:
            raise RequestError("this model reads no pictures: send text alone")
        contexts = Contexts("", self.renderer, system_prompt=chat.system_prompt, window=None)
        for answer, observation in zip([*chat.answers, None], chat.observations, strict=True):
            observation = self.renderer.fitted(observation)
            digests = [frame_digest(frame) for frame in observation["images"]]
            contexts.show(contexts.prompt(observation), digests)
            if answer is not None:
                ids = self._sampled.get(_key(contexts.row, answer))
                ids = ids or self.renderer.answer(answer)
                contexts.answer(ids, [None] * len(ids))
        row = contexts.row
        if len(row.ids) >= self.context:
            raise RequestError(
                f"the messages take {len(row.ids)} tokens, and the context has {self.context} with "
                "the answer: leave out earlier messages, or send smaller pictures"
            )
        return row

    async def _answer(
        self, prompt: Conversation, sampling: Sampling, stops: Sequence[str], show: Show | None
    ) -> Answer:
        reader = AnswerReader(self.renderer, stops, show)
        generation, cached = await self.generate(prompt, sampling, reader.read)
        ids, cut = generation.ids, generation.stop_reason == "length"
        reader.end()
        if not reader.stopped:
            closed = [*ids, self.processor.eos_id] if cut else ids
            self._sampled[_key(prompt, reader.text)] = closed
            if len(self._sampled) > REMEMBERED:
                self._sampled.popitem(last=False)
        finish = "length" if cut and not reader.stopped else "stop"
        return Answer(reader.text, reader.tokens, finish, cached)

    async def generate(
        self,
        prompt: Conversation,
        sampling: Sampling,
        until: Callable[[int, float], bool] | None = None,
    ) -> tuple[Generation, int]:
        """Continues a prompt, in the model's thread; also returns its tokens in the cache."""
        async with self._room:
            if self._opening is None or self._opening.done():
                self._opening = asyncio.ensure_future(asyncio.sleep(self._wait_seconds))
            await asyncio.shield(self._opening)
            name, cached = self._slot(prompt)
            try:
                generation = await self.policy.generate(
                    request_id=name,
                    prompt_ids=prompt.ids,
                    images=prompt.images,
                    sampling=sampling,
                    until=until,
                )
            except BaseException:
                self._free(name)
                raise
            self._cached[name] = ([*prompt.ids, *generation.ids[:-1]], prompt.digests)
        counts = {"prompt": len(prompt.ids), "cached": cached, "answer": len(generation.ids)}
        for kind, number in counts.items():
            self.count(kind, number)
        return generation, cached

    def _slot(self, prompt: Conversation) -> tuple[str, int]:
        """The cached conversation that the prompt continues, or a new name, and its length."""
        begun = {
            name: len(ids)
            for name, (ids, digests) in self._cached.items()
            if len(ids) < len(prompt.ids)
            and prompt.ids[: len(ids)] == ids
            and prompt.digests[: len(digests)] == digests
        }
        if begun:
            name = max(begun, key=begun.__getitem__)
            del self._cached[name]
            return name, begun[name]
        if self._live == self.policy.slots:
            self._free(next(iter(self._cached)))
        self._live += 1
        return next(self._names), 0

    def _free(self, name: str) -> None:
        self._cached.pop(name, None)
        self._live -= 1
        self.policy.release(name)


def load_served(model: str, infra: InfraConfig, **options: Any) -> ServedModel:
    """Loads a model where the infra says, and starts it.

    Args:
        model: A directory, a hub id, or another source of `vagen.models`.
        infra: Device, threads and dtype.
        options: See `ServedModel`.

    Raises:
        ModelError: The model cannot be loaded.
    """
    configure_torch(infra)
    check_model(model)
    loaded = load_model(model, device=device_of(infra), dtype=getattr(torch, infra.dtype))
    threads = infra.threads or core_count()
    return ServedModel(loaded, recorded=infra.local.cuda_graphs, threads=threads, **options)


class AnswerReader:
    """Reads an answer while it is sampled: its text so far, and whether a stop text ends it."""

    def __init__(self, renderer: ChatRenderer, stops: Sequence[str], show: Show | None) -> None:
        self.text = ""
        self.tokens: list[tuple[int, float]] = []
        self.stopped = False
        self._renderer, self._stops, self._show = renderer, stops, show
        self._shown = self._shown_tokens = 0

    def read(self, token: int, logprob: float) -> bool:
        """Adds a token; returns whether the answer ends before a stop text."""
        self.tokens.append((token, logprob))
        if self._stops or self._show is not None:
            self._decode()
            self._present(self._certain())
        return self.stopped

    def end(self) -> None:
        """Shows the rest."""
        if not self.stopped:
            self._decode()
        self._present(len(self.text))

    def _decode(self) -> None:
        self.text = self._renderer.text([token for token, _ in self.tokens])
        places = [at for stop in self._stops if (at := self.text.find(stop)) >= 0]
        if places:
            self.text, self.stopped = self.text[: min(places)], True

    def _certain(self) -> int:
        """Characters that no further token changes."""
        # A character may take several tokens, and decoding may join spaces with what follows.
        text = self.text.rstrip("\ufffd \n\t")
        begun = [
            size
            for stop in self._stops
            for size in range(1, len(stop))
            if self.text.endswith(stop[:size])
        ]
        return min(len(text), len(self.text) - max(begun, default=0))

    def _present(self, end: int) -> None:
        if self._show is not None and end > self._shown:
            self._show(self.text[self._shown : end], self.tokens[self._shown_tokens :])
            self._shown, self._shown_tokens = end, len(self.tokens)


def frame_digest(frame: NDArray[np.uint8]) -> str:
    """Identifies a frame."""
    return _digest(frame, *map(str, frame.shape))


def _digest(content: NDArray[Any], *more: str) -> str:
    text = "/".join(more).encode("utf-8", "replace")
    return hashlib.sha256(content.tobytes() + text).hexdigest()


def _key(prompt: Conversation, answer: str) -> str:
    """Identifies an answer's text after a prompt."""
    return _digest(np.asarray(prompt.ids, dtype=np.int32), *prompt.digests, answer)
