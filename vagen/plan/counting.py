"""Counts tokens of a published model whose tokenizer is not on this machine.

Images are counted exactly, since their size alone decides. Text is estimated from how tokenizers
of the Qwen family cut it: a word is one token, a long one two, digits and signs count singly. That
is meant to be a little too many; it could not be compared with the real tokenizers here.
"""

import re
from collections.abc import Iterable
from typing import Any

from vagen.models import Processor
from vagen.models.published import IMAGE_TOKEN, PUBLISHED

PIECES = re.compile(r"<\|[a-z_]+\|>| ?[^\W\d_]+|\d| ?[^\w\s]|_|\n+|\s+")
LONG_WORD = 10
"""Letters from which on a word counts twice."""
END, TEXT = 1, 2


class CountingTokenizer:
    """As many ids as a text has tokens, by estimate; the ids themselves mean nothing."""

    eos_token_id = END
    pad_token_id = END
    all_special_tokens = ("<|im_start|>", "<|im_end|>", "<|image_pad|>", "<|endoftext|>")

    def __init__(self, added: Iterable[str] = ()) -> None:
        """Knows the tags that are one token, as `transformers` names them."""
        self.added_tokens_encoder = dict.fromkeys(added, TEXT)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """One id per token; image tokens have their own."""
        ids = []
        for piece in PIECES.findall(text):
            if piece == "<|image_pad|>":
                ids.append(IMAGE_TOKEN)
            elif piece == "<|im_end|>":
                ids.append(END)
            else:
                ids += [TEXT] * (1 + (piece.strip().isalpha() and len(piece.strip()) > LONG_WORD))
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of the token that ends a turn; there is no other way back."""
        assert ids == [END]
        return "<|im_end|>"

    def apply_chat_template(
        self, messages: list[dict[str, Any]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        """The conversation as the Qwen family writes it."""
        assert not tokenize
        parts = [f"<|im_start|>{m['role']}\n{_content(m['content'])}<|im_end|>\n" for m in messages]
        return "".join(parts) + ("<|im_start|>assistant\n" if add_generation_prompt else "")


def _content(content: str | list[dict[str, str]]) -> str:
    if isinstance(content, str):
        return content
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    return "".join(part.get("text", image) for part in content)


def must_estimate(model: str) -> bool:
    """Whether it is a published model whose tokenizer has not been downloaded."""
    from huggingface_hub import try_to_load_from_cache

    if model not in PUBLISHED:
        return False
    found = [try_to_load_from_cache(model, name) for name in ("config.json", "tokenizer.json")]
    return not all(isinstance(path, str) for path in found)


def counting_processor(model: str) -> Processor:
    """Counts tokens as the published model's own processor would, text by estimate."""
    published = PUBLISHED[model]
    return Processor(
        tokenizer=CountingTokenizer(published.added_tags),
        image_processor=published.image_processor(),
        model_type=published.model_type,
        image_token_id=IMAGE_TOKEN,
        merge_size=published.vision["spatial_merge_size"],
    )
