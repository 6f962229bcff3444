"""Model directories of published size with random weights: no network, no download.

Weights are drawn so that every part of the network matters: linear layers at fan_in^-1/2, queries
three times as large, so that a token attends to few others, the output layer such that logits
deviate by about 3. Probabilities of sampled tokens then spread as those of trained models do, and
rest on what was said before; with the usual .02 they would all be near one over the vocabulary, and
say nothing about how well two engines agree.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vagen.config.schema import ExperimentConfig
from vagen.envs import make
from vagen.models.published import PUBLISHED
from vagen.models.tiny import build_tokenizer

LOGIT_DEVIATION = 3.0
VOCABULARY = 4096
"""Most tokens that the tokenizer learns."""
WITHOUT_TEXT = 271
"""Ids of the published vocabulary of Qwen2.5-VL that are no token; they are banned."""
SHARPNESS = 3.0
"""Deviation of attention's scores."""
SMALL_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
}
SMALL_VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 64,
}


@dataclass(frozen=True, slots=True)
class Cut:
    """A published architecture with fewer layers, or narrower."""

    published: str
    experiment: str
    """The shipped experiment that has the model."""
    text: dict[str, int] = field(default_factory=dict)
    vision: dict[str, int] = field(default_factory=dict)


QWEN25, QWEN3 = "Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen3-VL-4B-Instruct"
EIGHT: dict[str, Any] = {"text": {"num_hidden_layers": 8}, "vision": {"depth": 8}}
SMALL: dict[str, Any] = {"text": SMALL_TEXT, "vision": SMALL_VISION}
MODELS = {
    "qwen25vl-3b": Cut(QWEN25, "sokoban-qwen25vl-3b"),
    "qwen25vl-1b": Cut(QWEN25, "sokoban-qwen25vl-3b", **EIGHT),
    "qwen25vl-tiny": Cut(QWEN25, "sokoban-qwen25vl-3b", **SMALL),
    "qwen3vl-4b": Cut(QWEN3, "sokoban-qwen3vl-4b"),
    "qwen3vl-1b": Cut(QWEN3, "sokoban-qwen3vl-4b", **EIGHT),
    "qwen3vl-tiny": Cut(QWEN3, "sokoban-qwen3vl-4b", **SMALL),
}


def build(name: str, directory: Path, experiment: ExperimentConfig, device: str) -> None:
    """Writes a model directory in bfloat16, as the published ones are.

    Args:
        name: Of `MODELS`.
        directory: Is made.
        experiment: Its environment's texts are what the tokenizer is trained on.
        device: Where the weights are drawn.
    """
    import torch
    from transformers import AutoModelForImageTextToText

    cut = MODELS[name]
    published = PUBLISHED[cut.published]
    published = replace(
        published, text=published.text | cut.text, vision=published.vision | cut.vision
    )
    tokenizer = build_tokenizer(_texts(experiment), vocab_size=VOCABULARY)
    config = _configuration(published, tokenizer)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    _initialise(model)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.config.architectures = [type(model).__name__]
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    _fill_vocabulary(directory / "tokenizer.json", config.get_text_config().vocab_size)
    family = {"qwen2_5_vl": "Qwen2_5_VLProcessor", "qwen3_vl": "Qwen3VLProcessor"}
    options = published.image_processor().to_dict() | {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": family[published.model_type],
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(options, default=str))


def _fill_vocabulary(path: Path, rows: int) -> None:
    """Adds tokens that no text is cut into, so that as many ids as published ones have a text."""
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary |= {token["content"]: token["id"] for token in content["added_tokens"]}
    first = 1 + max(vocabulary.values())
    vocabulary |= {f"w{number:06}": number for number in range(first, rows - WITHOUT_TEXT)}
    path.write_text(json.dumps(content, ensure_ascii=False))


def _texts(experiment: ExperimentConfig) -> list[str]:
    spec = next(iter(experiment.envs.values()))
    env: Any = make(spec.env_name, spec.env_config)
    observation, _ = env.reset(seed=0)
    return [env.system_prompt(), observation["text"], env.expert_response()]


def _configuration(published: Any, tokenizer: Any) -> Any:
    config = published.config()
    text, vision = config.get_text_config(), config.vision_config
    half = (getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads) // 2
    side = half * 3 // 8  # of height and of width; time has the rest
    qwen3 = published.model_type == "qwen3_vl"
    text.rope_parameters = {
        "rope_type": "default",
        "rope_theta": 1e6,
        "mrope_section": [half - 2 * side, side, side],
    } | ({"mrope_interleaved": True} if qwen3 else {})
    text.max_position_embeddings = 32_768
    if getattr(text, "layer_types", None):
        text.layer_types = ["full_attention"] * text.num_hidden_layers
    last = [vision.depth - 1]
    if qwen3:
        inside = [i for i in vision.deepstack_visual_indexes if i < vision.depth]
        vision.deepstack_visual_indexes = inside or last
    else:
        whole = [i for i in vision.fullatt_block_indexes if i < vision.depth]
        vision.fullatt_block_indexes = whole or last
    for part in ("image_pad", "video_pad", "vision_start", "vision_end"):
        name = f"{part.removesuffix('_pad')}_token_id"
        setattr(config, name, tokenizer.convert_tokens_to_ids(f"<|{part}|>"))
    for section in (config, text):
        section.eos_token_id, section.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
        section.bos_token_id = None
    return config


def _initialise(model: Any) -> None:
    import torch

    head = model.get_output_embeddings().weight
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if name.endswith("q_norm"):
            torch.nn.init.constant_(module.weight, SHARPNESS)
        if weight is None or weight.ndim < 2:
            continue
        deviation = weight[0].numel() ** -0.5
        if weight is head:
            deviation *= LOGIT_DEVIATION
        elif isinstance(module, torch.nn.Embedding):
            deviation = 0.1
        elif name.endswith("q_proj"):
            deviation *= SHARPNESS
        torch.nn.init.normal_(weight, std=deviation)
        if (bias := getattr(module, "bias", None)) is not None:
            torch.nn.init.zeros_(bias)
