"""How a chat template writes the thoughts of a reasoning model, found by rendering examples.

A template may open the thought itself: the prompt of an answer ends with `<think>`. It may also
take thoughts out of earlier answers, everything up to the last `</think>`, when a user's message
follows (Qwen3, QwQ, the distilled DeepSeek-R1). An answer without `</think>` stays whole.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

THINK, END = "<think>", "</think>"
CLOSING = f"\n{END}\n\n"
"""Closes a thought that has used its budget, as the published templates write it."""
ANSWER = "Yes"
"""Placeholder of a response when only the text around it is needed."""
SPACES = ("\n\n \n", " \n\n")
"""Show what templates strip from an answer: nothing, line breaks or all white space."""
THOUGHTS = (
    f"Hm{CLOSING}{ANSWER}",
    f"Hm{END}{ANSWER}",
    *(f"Hm{END}{space}{ANSWER}" for space in SPACES),
    f"Hm{END}No{CLOSING}{ANSWER}",
)


def thinks(tokenizer: Any) -> bool:
    """Whether the chat template knows thoughts."""
    return "think>" in str(getattr(tokenizer, "chat_template", ""))


@dataclass(frozen=True, slots=True)
class Thoughts:
    """What a chat template does with thoughts."""

    tokenizer: Any
    opening: str
    """Part of the answer at the end of a prompt: `<think>`, an empty thought, or nothing."""
    drops: bool
    """Whether thoughts are taken out of earlier answers."""
    instead: str = ""
    """What is written in place of a thought that is taken out."""
    stripped: str | None = ""
    """Characters stripped from the start of the rest, as in `str.lstrip`."""

    @classmethod
    def of(cls, tokenizer: Any, render: Callable[..., str], eos: str) -> "Thoughts":
        """Finds out by rendering.

        Args:
            tokenizer: The model's tokenizer.
            render: Renders messages, with the header of an answer if `generate`.
            eos: Text of the token that ends a turn.
        """
        user = {"role": "user", "content": "."}
        prompt = render([user], generate=True)
        found = re.search(rf"(?:{THINK}\s*(?:{END}\s*)?)?\Z", prompt)
        assert found is not None
        opening = found[0]
        header = prompt.removesuffix(opening)
        begun = opening if opening and END not in opening else f"{opening}{THINK}\n"

        def shown(thought: str) -> str:
            answer = {"role": "assistant", "content": f"{begun}{thought}{ANSWER}"}
            whole = render([user, answer, user], generate=False)
            return whole.removeprefix(header).partition(f"{ANSWER}{eos}")[0]

        if shown(f"Hm{CLOSING}") == f"{begun}Hm{CLOSING}":
            return cls(tokenizer, opening, drops=False)
        instead, rest = shown(f"Hm{END}"), shown(f"Hm{END}{SPACES[0]}")
        kinds = ("", "\n", None)
        stripped = next((k for k in kinds if rest == instead + SPACES[0].lstrip(k)), "")
        return cls(tokenizer, opening, drops=True, instead=instead, stripped=stripped)

    @property
    def begun(self) -> str:
        """The thought that the template has opened and the model continues; or nothing."""
        return "" if END in self.opening else self.opening

    @property
    def examples(self) -> list[str]:
        """Responses of every kind, as the model samples them after a prompt."""
        return [*(f"{'' if self.begun else THINK}{text}" for text in THOUGHTS), ANSWER]

    def rest(self, ids: Sequence[int]) -> list[int] | None:
        """Ids of a response in later contexts, without its thought; None if it stays whole.

        They are the sampled ones. Only a token of which a part is stripped is encoded again.
        """
        ends = self.tokenizer.decode(ids).count(END)
        if not self.drops or not (ends or END in self.opening):
            return None
        end = self._place(ids, ends)
        head = self.tokenizer.decode(ids[:end]).rpartition(END)[2].lstrip(self.stripped)
        rest = list(ids[end:])
        while not head and rest:
            text = self.tokenizer.decode(rest[:1])
            head = text.lstrip(self.stripped)
            if head == text:
                return rest
            del rest[0]
        return self.tokenizer.encode(head, add_special_tokens=False) + rest

    def length(self, ids: Sequence[int]) -> int | None:
        """Number of a response's tokens that are thought, with `</think>`; None without one."""
        return self._place(ids, 1) if self._begins(ids) else None

    def is_open(self, ids: Sequence[int]) -> bool:
        """Whether a response is within its thought after these tokens."""
        return self._begins(ids) and END not in self.tokenizer.decode(ids)

    def _place(self, ids: Sequence[int], count: int) -> int:
        """Number of ids up to the `count`-th `</think>`; all if there are fewer."""
        decode = self.tokenizer.decode
        return bisect_left(range(len(ids)), count, key=lambda n: decode(ids[:n]).count(END))

    def _begins(self, ids: Sequence[int]) -> bool:
        return f"{self.begun}{self.tokenizer.decode(ids)}".lstrip().startswith(THINK)

    @property
    def closing_ids(self) -> list[int]:
        """Ids of `CLOSING`."""
        return self.tokenizer.encode(CLOSING, add_special_tokens=False)

    def after_opening(self, text: str) -> str:
        """What the model samples after a prompt if this is to be the whole response."""
        if not self.begun:
            return text
        begins = text.startswith(THINK)
        return text.removeprefix(THINK) if begins else f"{CLOSING.lstrip()}{text}"


def without_thought(response: str) -> str:
    """A response without the closed thought that it begins with, if it does."""
    _, closed, rest = response.partition(END)
    return rest.lstrip() if closed and response.lstrip().startswith(THINK) else response
