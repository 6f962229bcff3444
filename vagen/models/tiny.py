"""Tiny models built in code: a Qwen3-VL (or text-only Qwen3) of about a million parameters.

They have the architecture, special tokens and chat template of the real family, are saved as
ordinary model directories, and are loaded like any hub model. Initialisation differs from
`transformers` (normal, .02), with which the vision path would not learn at this size. Linear layers
have standard deviation fan_in^-1/2, embeddings .1 and vision positions .5.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

TINY_MODELS = {
    "tiny:vl": "Qwen3-VL, about 1 M parameters, one visual token per 32 px tile",
    "tiny:text": "Qwen3, about 1 M parameters, text only",
}

SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]

CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{% if message['content'] is string -%}
{{ message['content'] }}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif part['type'] == 'text' -%}
{{ part['text'] }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}"""

PATCH_SIZE = 16
MERGE_SIZE = 2
MAX_LENGTH = 8192
ENOUGH_PIXELS = 512
"""Number of rows and columns of a frame that its statistics use."""


@dataclass(frozen=True, slots=True)
class PixelStatistics:
    """Mean and standard deviation per colour channel, in [0, 1].

    A model this small learns to see only if the background is near 0. If most pixels had one bright
    colour, every optimizer step would move all patches alike.
    """

    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    @classmethod
    def of(cls, frames: Iterable[np.ndarray]) -> "PixelStatistics":
        """Statistics of frames, each uint8 [height, width, 3]; the defaults without frames.

        Iterates over frames one at a time. Skips rows and columns of frames of 1,024 pixels and
        more.
        """
        counts = np.zeros((3, 256), np.int64)
        for frame in frames:
            step = max(1, min(frame.shape[:2]) // ENOUGH_PIXELS)
            counts += np.reshape(Image.fromarray(frame[::step, ::step]).histogram(), (3, 256))
        if not counts.any():
            return cls()
        levels, shares = np.arange(256) / 255.0, counts / counts.sum(1, keepdims=True)
        mean = shares @ levels
        std = np.sqrt((shares * (levels - mean[:, None]) ** 2).sum(1)).clip(1e-2)
        return cls(tuple(mean.tolist()), tuple(std.tolist()))


def build_tokenizer(
    corpus: Iterable[str], *, tags: Iterable[str] = (), vocab_size: int = 640
) -> Any:
    """Byte-level BPE trained on `corpus`, with Qwen's special tokens and chat template.

    Any text round-trips; words of the corpus become single tokens up to `vocab_size`.
    `tags` (layout tags such as `<answer>`) are single, ordinary tokens that survive decoding with
    `skip_special_tokens=True`.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tags = sorted(set(tags))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS) - len(tags),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_without(corpus, tags), trainer)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL_TOKENS[1:],
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_tiny_model(
    name: str,
    directory: Path,
    *,
    corpus: Iterable[str],
    tags: Iterable[str],
    seed: int,
    pixels: "PixelStatistics | None" = None,
    vocab_size: int = 640,
) -> None:
    """Writes a randomly initialised tiny model as an ordinary model directory.

    Args:
        name: A key of `TINY_MODELS`.
        directory: Receives weights (safetensors), configuration, tokenizer and image processor.
        corpus: Training texts of the tokenizer.
        tags: Layout tags that become single tokens.
        seed: Seed of the initialisation.
        pixels: Statistics of its frames; None scales images to [-1, 1].
        vocab_size: Maximum number of tokens.

    Raises:
        ValueError: `name` is not a tiny model.
    """
    import torch

    if name not in TINY_MODELS:
        raise ValueError(f"no tiny model is named {name!r}: there are {', '.join(TINY_MODELS)}")
    tokenizer = build_tokenizer(corpus, tags=tags, vocab_size=vocab_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _vision_language_model(tokenizer) if name == "tiny:vl" else _text_model(tokenizer)
        _initialise(model)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.do_sample = True  # for `transformers serve` with a temperature
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    if name == "tiny:vl":
        _write_image_processor(directory, pixels or PixelStatistics())


def _without(corpus: Iterable[str], tags: list[str]) -> Iterable[str]:
    """The corpus without tags, so that merges never span part of a tag."""
    for text in corpus:
        for tag in tags:
            text = text.replace(tag, "\n")
        yield text


def _text_options(tokenizer: Any) -> dict[str, Any]:
    return {
        "vocab_size": -(-len(tokenizer) // 32) * 32,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": MAX_LENGTH,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _text_model(tokenizer: Any) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        **_text_options(tokenizer),
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )
    return Qwen3ForCausalLM(config)


def _vision_language_model(tokenizer: Any) -> Any:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    def token(text: str) -> int:
        return tokenizer.convert_tokens_to_ids(text)

    config = Qwen3VLConfig(
        text_config={
            **_text_options(tokenizer),
            "rope_parameters": {
                "rope_type": "default",
                "mrope_section": [4, 6, 6],
                "mrope_interleaved": True,
                "rope_theta": 10_000.0,
            },
        },
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "out_hidden_size": 128,
            "patch_size": PATCH_SIZE,
            "spatial_merge_size": MERGE_SIZE,
            "temporal_patch_size": 2,
            "deepstack_visual_indexes": [0],
            "num_position_embeddings": 64,
        },
        tie_word_embeddings=False,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )
    return Qwen3VLForConditionalGeneration(config)


def _initialise(model: Any) -> None:
    from torch import nn

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Conv3d):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.5 if "pos_embed" in name else 0.1)


def _write_image_processor(directory: Path, statistics: PixelStatistics) -> None:
    pixels = (PATCH_SIZE * MERGE_SIZE) ** 2
    options = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen3VLProcessor",
        "patch_size": PATCH_SIZE,
        "merge_size": MERGE_SIZE,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": pixels, "longest_edge": pixels * 256},
        "image_mean": list(statistics.mean),
        "image_std": list(statistics.std),
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
        "resample": 3,
        "rescale_factor": 1 / 255,
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(options, indent=2) + "\n")
