"""The extractor in this process: a small model that was trained to list claims and does no more.

It reads the statement cut into numbered sentences, and writes a claim per line in the phrases of
the environment, after the number of the sentence that says it. That sentence is the claim's quote.
What else it writes claims nothing.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from vagen.clients import DEADLINE, EndpointError, NoAnswerError, Reason, Usage
from vagen.config.judge_options import LLMJudgeConfig
from vagen.envs.claims import Claim
from vagen.judge.cache import normalized
from vagen.judge.llm.client import Answer, ChatClient, Question, Respondent

WEIGHTS = "model.safetensors"
BATCH = 64
"""Most statements that are read at once."""
_END = re.compile(r"[;\n]|\.(?!\d)")
_LINE = re.compile(r"(\d{1,3}) (.+)")


def sentences_of(text: str) -> list[str]:
    """The sentences of a text, in lower case and without empty ones."""
    parts = _END.split(normalized(text).lower())
    return [part for each in parts if (part := each.strip())]


def extractor_prompt(section: str, text: str, kinds: Iterable[type[Claim]]) -> str:
    r"""What the model is given.

    Args:
        section: `observation` or `prediction`.
        text: The statement.
        kinds: Claims that there are in the environment.

    Example:
        >>> extractor_prompt("observation", "A door is near. It is left of me.", [])
        'observation\n1 a door is near\n2 it is left of me'
    """
    names = " ".join([section, *(kind.claim_name() for kind in kinds)])
    numbered = [f"{n} {part}" for n, part in enumerate(sentences_of(text), start=1)]
    return "\n".join([names, *numbered])


def extractor_answer(text: str, said: Iterable[tuple[str, Claim]]) -> str:
    """What the model is to write of a text with these clauses and claims, in their order."""
    sentences, place, lines = sentences_of(text), 0, []
    for clause, claim in said:
        clause = normalized(clause).lower()
        while clause not in sentences[place]:
            place += 1
        lines.append(f"{place + 1} {claim}".lower())
    return "\n".join(lines)


def read_extraction(answer: str, text: str, kinds: Iterable[type[Claim]]) -> list[dict[str, Any]]:
    """The claims of an answer as the extractor's schema has them, with their quotes."""
    sentences, found = sentences_of(text), []
    for line in answer.split("\n"):
        match = _LINE.fullmatch(line.strip())
        if match is None or not 0 < int(match[1]) <= len(sentences):
            continue
        claim = next(filter(None, (kind.from_clause(match[2]) for kind in kinds)), None)
        if claim is not None:
            own = {"claim": claim.claim_name(), "quote": sentences[int(match[1]) - 1]}
            found.append(own | claim.model_dump(mode="json"))
    return found


def client_of(config: LLMJudgeConfig, *, share: int = 1, key: str = "judge.llm") -> Respondent:
    """Who is asked: an endpoint, or an extractor in this process.

    Raises:
        EndpointError: The key of an endpoint is not in the environment, or there is no extractor.
    """
    if config.base_url is None:
        return EmbeddedExtractor(config, key=key)
    return ChatClient(config, share=share, key=key)


def model_name(config: LLMJudgeConfig) -> str:
    """What tells a model from others: its name, or the digest of an extractor's weights.

    Raises:
        OSError: The folder of an extractor has no weights.
    """
    if config.base_url is not None:
        return config.model or ""
    return hashlib.sha256((Path(config.model or "") / WEIGHTS).read_bytes()).hexdigest()


class EmbeddedExtractor:
    """A model directory that `vagen judge train-extractor` wrote, as a client that extracts.

    Statements that are asked about at once are read in batches, in a thread of their own.
    """

    breaks = 0

    def __init__(self, config: LLMJudgeConfig, *, key: str = "judge.llm") -> None:
        """Loads the model.

        Args:
            config: Its `model` is the directory; only `max_tokens` matters beside.
            key: Where the section stands, for messages.

        Raises:
            EndpointError: It is no such directory.
        """
        from transformers import AutoModelForCausalLM, AutoTokenizer, logging

        logging.disable_progress_bar()
        self.config = config
        self.usage = Usage()
        folder = Path(config.model or "")
        try:
            self.name = model_name(config)
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
            self._model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
        except (OSError, ValueError, KeyError) as error:
            raise EndpointError(
                f"`{key}.model`: {folder} is no extractor ({str(error).splitlines()[0]}); `vagen "
                "judge train-extractor` writes one, or name an endpoint by its base_url"
            ) from None
        self._waiting: list[tuple[Question, asyncio.Future[str]]] = []
        self._reader: asyncio.Task[None] | None = None

    async def ask(self, question: Question, read: Callable[[str], Answer]) -> Answer:
        """The answer to an extraction.

        Raises:
            NoAnswerError: It is longer than `max_tokens` or comes after the batch's deadline, or
                nothing was to be extracted.
        """
        if not question.kinds:
            raise NoAnswerError(Reason.REJECTED, "an extractor answers nothing but extractions")
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        self.usage.requests += 1
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read_all())
        try:
            async with asyncio.timeout_at(DEADLINE.get()):
                answer = read(await future)
        except TimeoutError:
            self.usage.failures[Reason.DEADLINE] += 1
            raise NoAnswerError(Reason.DEADLINE) from None
        except NoAnswerError as error:
            self.usage.failures[error.reason] += 1
            raise
        self.usage.answers += 1
        return answer

    async def close(self) -> None:
        """Nothing is open."""

    async def _read_all(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # so that those who ask at once are read together
            self._waiting.sort(key=lambda each: len(each[0].statement))
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            try:
                answers = await asyncio.to_thread(self._extract, [each for each, _ in batch])
            except Exception as error:  # it belongs to those who wait for it
                answers = [error] * len(batch)
            for (_, future), answer in zip(batch, answers, strict=True):
                if future.done():
                    continue
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    def _extract(self, questions: Sequence[Question]) -> list[str | NoAnswerError]:
        import torch

        prompts = [extractor_prompt(q.section, q.statement, q.kinds) for q in questions]
        chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
        inputs = self._tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            ids = self._model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=self.config.max_tokens,
                do_sample=False,
            )
        new = ids[:, inputs["input_ids"].shape[1] :]
        self.usage.prompt_tokens += int(inputs["attention_mask"].sum())
        self.usage.completion_tokens += int((new != self._tokenizer.pad_token_id).sum())
        found: list[str | NoAnswerError] = []
        for question, row in zip(questions, new, strict=True):
            if self._tokenizer.eos_token_id not in row:
                found.append(NoAnswerError(Reason.CUT))
                continue
            answer = self._tokenizer.decode(row, skip_special_tokens=True)
            claims = read_extraction(answer, question.statement, question.kinds)
            found.append(json.dumps({"claims": claims}))
        return found
