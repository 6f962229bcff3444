"""The Qwen-VL families at a size for tests, built from their own configuration classes."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vagen.models.families import family_of
from vagen.models.processor import Processor

GRID_FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
MERGE = 2
IMAGE, VIDEO, VISION_START, VISION_END = 60, 61, 62, 63


def family_config(family: str, vocabulary: int = 64, *, tied: bool = False, **ids: int) -> Any:
    """A configuration of two decoder layers and a vision tower of two blocks."""
    from transformers import Qwen2_5_VLConfig, Qwen2VLConfig, Qwen3VLConfig

    text = {
        "vocab_size": vocabulary,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": [2, 3, 3],
        },
    }
    vision: dict[str, Any] = {
        "depth": 2,
        "num_heads": 2,
        "patch_size": 16,
        "temporal_patch_size": 2,
    }
    vision["spatial_merge_size"] = MERGE
    if family == "qwen2_vl":
        cls = Qwen2VLConfig
        vision |= {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}
    elif family == "qwen2_5_vl":
        cls = Qwen2_5_VLConfig
        vision |= {"hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 64}
        vision |= {"window_size": 64, "fullatt_block_indexes": [1]}
    else:
        cls = Qwen3VLConfig
        text |= {"head_dim": 16}
        vision |= {"hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 64}
        vision |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 64}
    ids = ids or {
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        "vision_start_token_id": VISION_START,
        "vision_end_token_id": VISION_END,
    }
    return cls(text_config=text, vision_config=vision, tie_word_embeddings=tied, **ids)


def family_class(family: str) -> Any:
    """The class with the language model head."""
    import transformers

    return {
        "qwen2_vl": transformers.Qwen2VLForConditionalGeneration,
        "qwen2_5_vl": transformers.Qwen2_5_VLForConditionalGeneration,
        "qwen3_vl": transformers.Qwen3VLForConditionalGeneration,
    }[family]


def write_qwen25vl(directory: Path, like: Path) -> Path:
    """A Qwen2.5-VL with random weights, tied as the published 3B has them.

    Args:
        directory: Is made.
        like: A model directory whose tokenizer and image processor it gets.
    """
    import torch
    from transformers import AutoConfig

    shutil.copytree(like, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    found = AutoConfig.from_pretrained(like)
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    ids = {name: getattr(found, name) for name in names}
    config = family_config("qwen2_5_vl", found.text_config.vocab_size, tied=True, **ids)
    torch.manual_seed(5)
    model = family_class("qwen2_5_vl")(config)
    for parameter in model.parameters():  # far from uniform attention
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    model.save_pretrained(directory)
    return directory


def text_config(*, tied: bool = False) -> Any:
    """A text model of the same decoder size."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=tied,
    )


def bare_processor(config: Any) -> Processor:
    """A processor for positions and ids alone."""
    return Processor(
        tokenizer=SimpleNamespace(get_added_vocab=dict, eos_token_id=0, pad_token_id=0),
        image_processor=object() if hasattr(config, "vision_config") else None,
        family=family_of(config),
    )
