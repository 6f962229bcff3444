"""A model directory of every family that reads images, at a size for tests.

Tokenizers have 256 bytes and the special tokens of the family; chat templates write what the
published ones write.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vagen.envs.base import IMAGE_PLACEHOLDER, Observation
from vagen.models.families import family_of
from vagen.rollout.conversation import ChatRenderer, Conversation
from vagen.rollout.types import TokenRow

TURNS = """\
{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}\
{% for part in message['content'] %}{% if part['type'] == 'image' %}IMAGE\
{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
SMOL = """\
<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}\
{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}\
{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}\
{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>
{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""
GEMMA = """\
{%- set first = messages[0]['content'] if messages[0]['role'] == 'system' else '' -%}
{%- set first = first if first is string else first[0]['text'] -%}
{%- for message in messages if message['role'] != 'system' -%}
<start_of_turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}
{{ first + '\n\n' if first and loop.first else '' }}
{%- if message['content'] is string -%}{{ message['content'] | trim }}
{%- else -%}{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}<start_of_image>{%- else -%}{{ part['text'] | trim }}
{%- endif -%}{%- endfor -%}{%- endif -%}<end_of_turn>
{% endfor -%}{%- if add_generation_prompt -%}<start_of_turn>model
{% endif -%}"""
DECODER = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
"""Sizes of a tiny decoder."""
TILES = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]


@dataclass(frozen=True)
class ImageFamily:
    """How a family is built."""

    specials: list[str]
    template: str
    config: Callable[[Callable[[str], int], dict[str, Any]], Any]
    """Of the id of a token, and the sizes of the decoder."""
    reader: dict[str, Any]
    """Options of the image processor."""
    eos: str = "<|im_end|>"
    named: dict[str, str] = field(default_factory=dict)
    """Tokens that the tokenizer has as attributes."""


def siglip(**options: Any) -> dict[str, Any]:
    return {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
        **options,
    }


def smolvlm(name: str) -> Callable[..., Any]:
    def config(token: Callable[[str], int], text: dict[str, Any]) -> Any:
        import transformers

        return getattr(transformers, f"{name}Config")(
            text_config={"model_type": "llama", **text},
            vision_config=siglip(),
            scale_factor=2,
            image_token_id=token("<image>"),
            tie_word_embeddings=False,
        )

    return config


def internvl(token: Callable[[str], int], text: dict[str, Any]) -> Any:
    from transformers import InternVLConfig

    return InternVLConfig(
        text_config={"model_type": "qwen2", **text},
        vision_config=siglip(),
        image_token_id=token("<IMG_CONTEXT>"),
        image_seq_length=4,
        tie_word_embeddings=False,
    )


def llava_onevision(token: Callable[[str], int], text: dict[str, Any]) -> Any:
    from transformers import LlavaOnevisionConfig

    return LlavaOnevisionConfig(
        text_config={"model_type": "qwen2", **text},
        vision_config={"model_type": "siglip_vision_model", "vision_use_head": False, **siglip()},
        image_token_index=token("<image>"),
        video_token_index=token("<video>"),
        image_grid_pinpoints=[[32, 32], [32, 64], [64, 32], [64, 64]],
    )


def glm(name: str) -> Callable[..., Any]:
    def config(token: Callable[[str], int], text: dict[str, Any]) -> Any:
        import transformers

        vision = {"depth": 2, "hidden_size": 32, "num_heads": 2, "image_size": 32, "patch_size": 8}
        rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]}
        return getattr(transformers, f"{name}Config")(
            text_config={**text, "rope_parameters": rope},
            vision_config={**vision, "out_hidden_size": 32, "intermediate_size": 48},
            image_token_id=token("<|image|>"),
            video_token_id=token("<|video|>"),
            image_start_token_id=token("<|begin_of_image|>"),
            image_end_token_id=token("<|end_of_image|>"),
            video_start_token_id=token("<|begin_of_video|>"),
            video_end_token_id=token("<|end_of_video|>"),
        )

    return config


def glmv(name: str) -> ImageFamily:
    return ImageFamily(
        specials=[
            *("<|im_start|>", "<|im_end|>", "<|image|>", "<|video|>", "<|begin_of_image|>"),
            *("<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>"),
        ],
        template=TURNS.replace("IMAGE", "<|begin_of_image|><|image|><|end_of_image|>"),
        config=glm(name),
        reader={
            "patch_size": 8,
            "merge_size": 2,
            "size": {"shortest_edge": 512, "longest_edge": 4096},
        },
    )


def gemma3(token: Callable[[str], int], text: dict[str, Any]) -> Any:
    from transformers import Gemma3Config

    return Gemma3Config(
        text_config={
            **text,
            "query_pre_attn_scalar": 8,
            "sliding_window": 12,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        vision_config={"vision_use_head": False, **siglip()},
        mm_tokens_per_image=4,
        image_token_index=token("<image_soft_token>"),
        boi_token_index=token("<start_of_image>"),
        eoi_token_index=token("<end_of_image>"),
        tie_word_embeddings=False,
    )


def smol(name: str) -> ImageFamily:
    return ImageFamily(
        specials=[
            *("<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>"),
            *("<image>", "<global-img>", *TILES),
        ],
        template=SMOL,
        config=smolvlm(name),
        reader={"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}},
        eos="<end_of_utterance>",
    )


IMAGE_FAMILIES: dict[str, ImageFamily] = {
    "gemma3": ImageFamily(
        specials=[
            *("<start_of_turn>", "<end_of_turn>", "<image_soft_token>"),
            *("<start_of_image>", "<end_of_image>"),
        ],
        template=GEMMA,
        config=gemma3,
        reader={"size": {"height": 32, "width": 32}},
        eos="<end_of_turn>",
        named={
            "image_token": "<image_soft_token>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        },
    ),
    "glm4v": glmv("Glm4v"),
    "glm46v": glmv("Glm46V"),
    "internvl": ImageFamily(
        specials=["<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>", "<video>"],
        template=TURNS.replace("IMAGE", "<IMG_CONTEXT>\n"),
        config=internvl,
        reader={"size": {"height": 32, "width": 32}, "max_patches": 4},
        named={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    ),
    "llava_onevision": ImageFamily(
        specials=["<|im_start|>", "<|im_end|>", "<image>", "<video>"],
        template=TURNS.replace("IMAGE", "<image>"),
        config=llava_onevision,
        reader={
            "size": {"height": 32, "width": 32},
            "image_grid_pinpoints": [[32, 32], [32, 64], [64, 32], [64, 64]],
        },
    ),
    "smolvlm": smol("SmolVLM"),
    "idefics3": smol("Idefics3"),
}


def family_tokenizer(family: ImageFamily) -> Any:
    """A tokenizer of bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    # Merges, so that text across the border of an image could become another token.
    merges = [("Ċ", "Ċ"), ("Ġ", "a"), ("a", "b")]
    vocabulary = [*alphabet, *(a + b for a, b in merges)]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=merges)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokens = ["<|endoftext|>", *family.specials]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in tokens])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=family.eos,
        pad_token="<|endoftext|>",
        extra_special_tokens=family.named,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = family.template
    return fast


def write_family(name: str, directory: Path) -> Path:
    """A model directory with random weights, far from uniform attention."""
    from transformers import AutoModelForImageTextToText

    family = IMAGE_FAMILIES[name]
    tokenizer = family_tokenizer(family)
    text = {
        "vocab_size": len(tokenizer) + 3,
        **DECODER,
        "max_position_embeddings": 2048,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = family.config(tokenizer.convert_tokens_to_ids, text)
    torch.manual_seed(5)
    model = AutoModelForImageTextToText.from_config(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    shutil.rmtree(directory, ignore_errors=True)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    reader = family_of(config).reader_class()
    reader(**family.reader).save_pretrained(directory)
    return directory


def frame(seed: int, height: int = 24, width: int = 40) -> np.ndarray:
    """Noise, uint8 [height, width, 3]."""
    rng = np.random.Generator(np.random.Philox(seed))
    return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)


SYSTEM = "Play ab."
FRAMES = {str(i): frame(i) for i in range(3)} | {"wide": frame(9, 16, 60)}


def shown(*names: str) -> Observation:
    """Text around an image each."""
    text = "".join(f"See\n{IMAGE_PLACEHOLDER}\n\nab {name}." for name in names)
    return {"text": text or "Go.", "images": tuple(FRAMES[name] for name in names)}


def conversation(processor: Any, name: str, answers: list[str], *frames: str) -> TokenRow:
    """A row with a frame a turn, as far as there are frames; the answers count as sampled."""
    renderer, row = ChatRenderer(processor), Conversation(name)
    row.extend(renderer.initial(SYSTEM, shown(*frames[:1])).ids, 0)
    for turn, answer in enumerate(answers):
        ids = [*processor.tokenizer.encode(answer, add_special_tokens=False), processor.eos_id]
        row.extend(ids, turn, [0.0] * len(ids))
        if turn + 1 < len(frames):
            row.extend(renderer.following(shown(frames[turn + 1])).ids, turn + 1)
    row.digests = list(frames)
    return row.row()


def plain_inputs(processor: Any, ids: Any, frames: list[str]) -> dict[str, torch.Tensor]:
    """Inputs of `transformers`, every image read anew by the family's image processor."""
    ids = torch.tensor([list(map(int, ids))])
    if not frames:
        return {"input_ids": ids}
    read = [
        processor.family.read(processor.image_processor, Image.fromarray(FRAMES[name]))
        for name in frames
    ]
    pixels = torch.from_numpy(np.concatenate([one.pixels for one in read]))
    inputs = processor.family.inputs(pixels, [one.grid for one in read])
    if processor.family.bidirectional:
        inputs["token_type_ids"] = (ids == processor.image_token_id).int()
    if processor.uses_mrope:
        inputs["mm_token_type_ids"] = (ids == processor.image_token_id).int()
    return {"input_ids": ids, **inputs}
