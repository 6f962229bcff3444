"""Architectures of published models, so that a plan needs neither their weights nor the hub.

Numbers come from the models' `config.json` and `preprocessor_config.json`.
"""

from dataclasses import dataclass
from typing import Any

IMAGE_TOKEN = 151655
"""`<|image_pad|>` of all Qwen-VL models."""


@dataclass(frozen=True, slots=True)
class Published:
    """Published facts about a model."""

    model_type: str
    text: dict[str, Any]
    vision: dict[str, Any]
    tied: bool
    """Whether the output layer is tied to the embedding."""
    pixels: tuple[int, int]
    """Minimum and maximum pixels of a scaled image."""
    added_tags: tuple[str, ...] = ()
    """Tags added to the tokenizer as single tokens."""

    def config(self) -> Any:
        """Its `transformers` configuration."""
        from transformers import AutoConfig

        text = {**self.text, "tie_word_embeddings": self.tied}
        return AutoConfig.for_model(
            self.model_type,
            text_config=text,
            vision_config=self.vision,
            tie_word_embeddings=self.tied,
            image_token_id=IMAGE_TOKEN,
        )

    def image_processor(self) -> Any:
        """Its image processor."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            Qwen2VLImageProcessorPil,
        )

        smallest, largest = self.pixels
        return Qwen2VLImageProcessorPil(
            patch_size=self.vision["patch_size"],
            merge_size=self.vision["spatial_merge_size"],
            temporal_patch_size=self.vision["temporal_patch_size"],
            size={"shortest_edge": smallest, "longest_edge": largest},
        )


def _qwen2_5_vl(*, tied: bool, **text: int) -> Published:
    vision = {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": text["hidden_size"],
    }
    pixels = (56 * 56, 3584 * 3584)
    return Published("qwen2_5_vl", text, vision, tied, pixels, CALLS)


CALLS = ("<tool_call>", "</tool_call>")
PUBLISHED = {
    "Qwen/Qwen2.5-VL-3B-Instruct": _qwen2_5_vl(
        tied=True,
        hidden_size=2048,
        intermediate_size=11_008,
        num_hidden_layers=36,
        num_attention_heads=16,
        num_key_value_heads=2,
        vocab_size=151_936,
    ),
    "Qwen/Qwen2.5-VL-7B-Instruct": _qwen2_5_vl(
        tied=False,
        hidden_size=3584,
        intermediate_size=18_944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152_064,
    ),
    "Qwen/Qwen3-VL-4B-Instruct": Published(
        model_type="qwen3_vl",
        text={
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151_936,
        },
        vision={
            "depth": 24,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_heads": 16,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": 2560,
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [5, 11, 17],
        },
        tied=True,
        pixels=(256 * 256, 4096 * 4096),
        added_tags=("<think>", "</think>", "<tool_response>", "</tool_response>", *CALLS),
    ),
}
"""Published models by hub id."""
