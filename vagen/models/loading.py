"""Loads models from a local directory or a hub id, and derives value models."""

import copy
import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from vagen.models import ModelError, first_line
from vagen.models.attention import ATTENTION, segments_of, window_of
from vagen.models.lora import merged_state
from vagen.models.processor import Processor, load_config, load_processor
from vagen.models.sources import directory_of
from vagen.models.vision import prepare_vision

PLAIN_RESPONSE_SCHEMA = {
    "type": "object",
    "properties": {"thinking": {"type": "string"}, "content": {"type": "string"}},
    "x-regex": "(?!)",
}
"""What transformers 5.10 reads in the place of `response_template`."""


LOGIT_FACTORS = {"logit_scale": 1, "logits_scaling": -1}
"""Factors of logits in configurations, with their powers."""
LOGIT_TOLERANCE = 0.02
"""Difference of a model's own logits from ours, as a share of the largest; those of a model in
bfloat16 are rounded."""
PROBE_TOKENS = 3
"""Tokens on which a loaded model is compared with itself."""


def scaled(logits: Tensor, text_config: Any) -> Tensor:
    """Logits of the output layer's values: Gemma 2 and 4 cap them, Granite and Cohere scale."""
    if cap := getattr(text_config, "final_logit_softcapping", None):
        logits = cap * torch.tanh(logits / cap)
    for name, power in LOGIT_FACTORS.items():
        if (factor := getattr(text_config, name, 1.0)) != 1:
            logits = logits * factor**power
    return logits


@dataclass(eq=False)
class LanguageModel:
    """A causal (vision-)language model with its processor."""

    model: Any
    """A `transformers` model with `model` (backbone) and `lm_head`."""
    processor: Processor

    def __post_init__(self) -> None:
        prepare_vision(self.model)
        known = inspect.signature(type(self.model.model).forward).parameters
        self.cache_name = "cache" if "cache" in known else "past_key_values"
        """What the backbone calls its cache; the latter until transformers 5.10."""

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.model.device

    @property
    def text_config(self) -> Any:
        """Configuration of the decoder."""
        return self.model.config.get_text_config()

    def hidden(self, **inputs: Any) -> Tensor:
        """Last hidden states [B, T, hidden] of the backbone."""
        return self.model.model(**inputs).last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., vocabulary] float32, banned tokens at -inf."""
        logits = scaled(self.model.lm_head(hidden).float(), self.text_config)
        return logits.index_fill_(-1, self.processor.banned_on(logits.device), -torch.inf)

    def recompute_activations(self) -> None:
        """Keeps only the inputs of layers in training, and computes the rest again backwards."""
        self.model.gradient_checkpointing_enable({"use_reentrant": False})

    def save(self, directory: Path) -> None:
        """Writes an ordinary model directory, adapters merged into the weights."""
        save_processor(directory, self.processor)
        self.model.save_pretrained(directory, state_dict=merged_state(self.model))


class ValueModel(nn.Module):
    """A backbone with a scalar head for the value of the state after each token."""

    def __init__(self, backbone: Any, hidden_size: int):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(hidden_size, 1, bias=True)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, **inputs: Any) -> Tensor:
        """Values [B, T] float32: entry t is the value of the state after token t."""
        hidden = self.backbone(**inputs).last_hidden_state
        return self.head(hidden.to(self.head.weight.dtype)).squeeze(-1).float()


def load_model(
    path: str | Path, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> LanguageModel:
    """A model from a local directory, a hub id or a GGUF file.

    Args:
        path: Local directory (as `save_pretrained` writes), hub id, or a source of
            `vagen.models.sources`.
        device: Device of the weights.
        dtype: Type of the weights.

    Raises:
        ModelError: No such model, missing weights, or an architecture other than a language
            model.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, logging

    logging.disable_progress_bar()
    config = load_config(path)
    processor = load_processor(path, config)
    family: Any = AutoModelForImageTextToText if processor.has_vision else AutoModelForCausalLM
    try:
        model, found = family.from_pretrained(
            directory_of(path),
            config=config,
            dtype=dtype,
            attn_implementation=ATTENTION,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(
            f"{path}: no weights could be loaded ({first_line(error)}); a model directory holds "
            "config.json, model.safetensors and the tokenizer's files"
        ) from error
    if missing := sorted(found["missing_keys"]):
        raise ModelError(
            f"{path}: {len(missing)} weights are missing, {missing[0]} among them; give a "
            "directory with the weights of the whole model, language model head included"
        )
    if not hasattr(model, "model") or not hasattr(model, "lm_head"):
        raise ModelError(
            f"{path}: {type(model).__name__} lacks the parts `model` and `lm_head`; use a "
            "decoder like Llama or Qwen"
        )
    model.to(device)
    model.eval()
    language_model = LanguageModel(model, processor)
    try:
        check_forward(language_model)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    return language_model


@torch.no_grad()
def check_forward(language_model: LanguageModel) -> None:
    """Compares what a model computes of two short rows with what is computed here, in one line.

    Raises:
        ModelError: Its logits are more than `scaled` makes of its output layer, or a layer looks
            beyond its row or does not take our arguments (`vagen.models.attention`).
    """
    model, text = language_model.model, language_model.text_config
    processor, device = language_model.processor, model.device
    ids = np.arange(PROBE_TOKENS, dtype=np.int32)
    axes = torch.from_numpy(processor.positions(ids, [], 0)[0])[:, None].expand(-1, 2, -1)
    positions = (axes if processor.uses_mrope else axes[0]).to(device)
    rows = torch.arange(2 * PROBE_TOKENS, device=device).view(2, -1)
    own = model(input_ids=rows, position_ids=positions, use_cache=False).logits.float()
    windows: list[int | None] = []
    hidden = language_model.hidden(
        input_ids=rows.view(1, -1),
        position_ids=positions.flatten(-2).unsqueeze(-2),
        use_cache=False,
        segments=segments_of([PROBE_TOKENS] * 2, device),
        seen=windows,
    )
    ours = scaled(model.lm_head(hidden).float(), text).view(own.shape)
    window = window_of(text)
    kinds = getattr(text, "layer_types", None) or ["sliding_attention"] * len(windows)
    expected = [window if kind == "sliding_attention" else None for kind in kinds]
    if windows != expected or not torch.allclose(
        own, ours, atol=LOGIT_TOLERANCE * float(own.abs().max())
    ):
        raise ModelError(
            f"rows laid end to end give other logits than {type(model).__name__} gives for each; "
            "use a decoder like Llama, Qwen or Gemma 3"
        )


def save_processor(directory: Path, processor: Processor) -> None:
    """Writes tokenizer and image processor; must not run while the tokenizer is used."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = processor.tokenizer
    # A whole response is content: by default `transformers serve` takes out what stands between
    # `<think>` and `</think>`, which is part of our layouts.
    content = {"content": "text", "close": tokenizer.eos_token}
    whole = {"start_anchor_pattern": r"\Z", "fields": {"content": content}}
    plain: dict[str, Any] = {"response_template": whole}
    plain["response_schema"] = PLAIN_RESPONSE_SCHEMA
    for name, parts in plain.items():
        if getattr(tokenizer, name, None) is None:
            setattr(tokenizer, name, parts)
            tokenizer.init_kwargs[name] = parts  # a version that has no such attribute keeps it
    tokenizer.save_pretrained(directory)
    if processor.image_processor is not None:
        processor.image_processor.save_pretrained(directory)
    if config := processor.family.processor_config:
        (directory / "processor_config.json").write_text(json.dumps(config, indent=2) + "\n")


def tied(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state with tied weights as the same tensor, so that they are written once."""
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in state:
            state[name] = state[first.setdefault(id(parameter), name)]
    return state


def value_model_from(policy: LanguageModel, *, share_weights: bool = False) -> ValueModel:
    """A value model that starts from the policy's backbone, with a head that returns 0.

    Args:
        policy: Without adapters.
        share_weights: See `copy_of`.
    """
    backbone = copy_of(policy.model.model, share_weights=share_weights)
    return ValueModel(backbone, policy.text_config.hidden_size).to(policy.device)


def copy_of(module: Any, *, share_weights: bool = False) -> Any:
    """A copy of a module.

    Args:
        module: Any module.
        share_weights: The copy uses the module's own parameters. For frozen weights, in networks
            with different adapters or none.
    """
    memo = {id(parameter): parameter for parameter in module.parameters()} if share_weights else {}
    return copy.deepcopy(module, memo)
