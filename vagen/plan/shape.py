"""The sizes of a model's architecture, from its configuration: no weights are loaded."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from vagen.config import ExperimentConfig
from vagen.experiment.checks import has_critic
from vagen.models import ModelError
from vagen.models.families import tower_parts
from vagen.models.lora import adapter_parameters
from vagen.models.published import PUBLISHED
from vagen.models.sources import directory_of

GIB = 1 << 30
WIDTH = {"float32": 4, "bfloat16": 2}
"""Bytes of a number of `infra.dtype`."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of an architecture."""

    parameters: int
    backbone_parameters: int
    """Without the output layer: what a value model copies."""
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    vision_parameters: int = 0
    vision_layers: int = 0
    vision_hidden: int = 0
    vision_intermediate: int = 0
    actor_adapters: int = 0
    """Parameters of the actor's adapters; 0 if all of it is trained."""
    critic_adapters: int = 0
    tied: bool = False
    """Whether the output layer is the embedding."""

    @property
    def cache_floats(self) -> int:
        """Numbers the key/value cache holds per token."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def activation_floats(self) -> int:
        """Numbers a backward pass keeps per token: norms, projections, attention, gated MLP."""
        attention = 3 * (self.heads + 2 * self.kv_heads) + 3 * self.heads
        return self.layers * (8 * self.hidden + attention * self.head_dim + 4 * self.intermediate)

    @property
    def patch_floats(self) -> int:
        """The same per image patch in the vision tower."""
        return self.vision_layers * (14 * self.vision_hidden + 2 * self.vision_intermediate)


def read_shape(model: str, experiment: ExperimentConfig | None = None) -> ModelShape:
    """Sizes of a model from its configuration; no weights are loaded.

    Args:
        model: Directory or hub id.
        experiment: Says which adapters there are; None is none.

    Raises:
        ModelError: If the configuration cannot be loaded or names no known architecture, or an
            adapter is for a layer that is not there.
    """
    from transformers import AutoConfig

    directory = directory_of(model)
    try:
        network = (
            _published(model)
            if model in PUBLISHED
            else _without_weights(AutoConfig.from_pretrained(directory))
        )
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"{model}: no model configuration could be loaded ({reason})") from None
    config = network.config
    vision: Any = getattr(config, "vision_config", None)
    tower = tower_parts(network.model)
    actor_adapters = critic_adapters = 0
    if experiment is not None:
        actor, critic = experiment.actor_rollout_ref.model, experiment.critic.model
        actor_adapters = adapter_parameters(network, actor) if actor.lora_rank else 0
        critic_adapters = adapter_parameters(network.model, critic) if critic.lora_rank else 0
    text: Any = config.get_text_config()
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return ModelShape(
        parameters=sum(weight.numel() for weight in network.parameters()),
        backbone_parameters=sum(weight.numel() for weight in network.model.parameters()),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        heads=text.num_attention_heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        head_dim=head_dim,
        vocabulary=text.vocab_size,
        vision_parameters=sum(w.numel() for part in tower for w in part.parameters()),
        vision_layers=getattr(vision, "depth", 0) or getattr(vision, "num_hidden_layers", 0),
        vision_hidden=getattr(vision, "hidden_size", 0),
        vision_intermediate=getattr(vision, "intermediate_size", 0),
        actor_adapters=actor_adapters,
        critic_adapters=critic_adapters,
        tied=bool(getattr(config, "tie_word_embeddings", False)),
    )


@cache
def _published(model: str) -> Any:
    return _without_weights(PUBLISHED[model].config())


def _without_weights(config: Any) -> Any:
    """The network of a configuration; its weights have shapes alone."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    text_alone = getattr(config, "vision_config", None) is None
    family = AutoModelForCausalLM if text_alone else AutoModelForImageTextToText
    with torch.device("meta"):
        return family.from_config(config)


def trained_parameters(experiment: ExperimentConfig, shape: ModelShape) -> tuple[int, int]:
    """How many parameters the actor and the critic train; 0 for a critic that is not there."""
    frozen, critic = frozen_parameters(experiment, shape), 0
    if has_critic(experiment):
        critic = (shape.critic_adapters or shape.backbone_parameters - frozen) + shape.hidden + 1
    return shape.actor_adapters or shape.parameters - frozen, critic


def frozen_parameters(experiment: ExperimentConfig, shape: ModelShape) -> int:
    """Parameters of a vision tower that learns no more."""
    return shape.vision_parameters * experiment.actor_rollout_ref.model.freeze_vision_tower
