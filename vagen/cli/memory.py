"""What the local engine needs in memory, estimated before anything is loaded.

The estimate counts what grows with the model and the batch: weights, gradients, Adam's moments, the
key/value cache of a rollout, and what a backward pass keeps per token. It is meant to refuse what
cannot fit and to be within a factor of two of what is then seen. On one CPU thread, an iteration of
`frozenlake-tiny` peaked at 2.1 GiB where 1.8 was estimated; with micro batches of 4,096 tokens both
were 1.1 GiB.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vagen.cli.sizes import ConversationSize
from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.checks import context_window, has_critic, has_reference
from vagen.models.published import PUBLISHED

GIB = 1 << 30
PROCESS = int(0.8 * GIB)
"""Python with torch and transformers, before a model is loaded."""
CACHE_START = 512
"""Tokens per slot the key/value cache begins with; it doubles from there."""
LOGIT_COPIES = 5
"""Vocabulary-wide float32 rows alive per action token: logits, tempered, their logarithm, entropy's
probabilities, and the gradient."""


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


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by purpose."""

    process: int
    weights: int
    adam: int
    gradients: int
    activations: int
    cache: int

    @property
    def rollout(self) -> int:
        """Peak while episodes run."""
        return self.process + self.weights + self.adam + self.cache

    @property
    def update(self) -> int:
        """Peak while the networks learn."""
        return self.process + self.weights + self.adam + self.gradients + self.activations

    @property
    def peak(self) -> int:
        """The larger of both."""
        return max(self.rollout, self.update)


def read_shape(model: str, experiment: ExperimentConfig | None = None) -> ModelShape:
    """Sizes of a model from its configuration; no weights are loaded.

    Args:
        model: Directory or hub id.
        experiment: Says which adapters there are; None is none.

    Raises:
        ModelError: If the configuration cannot be loaded or names no known architecture, or an
            adapter is for a layer that is not there.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    from vagen.models import ModelError

    published = PUBLISHED.get(model)
    try:
        config = published.config() if published else AutoConfig.from_pretrained(model)
        vision: Any = getattr(config, "vision_config", None)
        family = AutoModelForCausalLM if vision is None else AutoModelForImageTextToText
        with torch.device("meta"):
            network: Any = family.from_config(config)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"{model}: no model configuration could be loaded ({reason})") from None
    actor_adapters = critic_adapters = 0
    if experiment is not None:
        actor_adapters, critic_adapters = _adapters(network, experiment)
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
        vision_layers=getattr(vision, "depth", 0),
        vision_hidden=getattr(vision, "hidden_size", 0),
        vision_intermediate=getattr(vision, "intermediate_size", 0),
        actor_adapters=actor_adapters,
        critic_adapters=critic_adapters,
        tied=bool(getattr(config, "tie_word_embeddings", False)),
    )


def _adapters(network: Any, experiment: ExperimentConfig) -> tuple[int, int]:
    """Parameters of the adapters of actor and critic."""
    from vagen.models.lora import adapter_parameters

    actor, critic = experiment.actor_rollout_ref.model, experiment.critic.model
    return (
        adapter_parameters(network, actor) if actor.lora_rank else 0,
        adapter_parameters(network.model, critic) if critic.lora_rank else 0,
    )


def trained_parameters(experiment: ExperimentConfig, shape: ModelShape) -> tuple[int, int]:
    """How many parameters the actor and the critic train; 0 for a critic that is not there."""
    critic = 0
    if has_critic(experiment):
        critic = (shape.critic_adapters or shape.backbone_parameters) + shape.hidden + 1
    return shape.actor_adapters or shape.parameters, critic


def estimate(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    shape: ModelShape,
    sizes: dict[str, ConversationSize],
) -> Memory:
    """Memory of the local engine."""
    width = {"float32": 4, "bfloat16": 2}[infra.dtype]
    actor, critic = trained_parameters(experiment, shape)
    # What is frozen in one network is read by the others; adapters are float32.
    weights = width * shape.parameters + 4 * (shape.actor_adapters + shape.critic_adapters)
    if critic:
        weights += width * (shape.hidden + 1)
        if not (shape.actor_adapters and shape.critic_adapters):
            weights += width * shape.backbone_parameters
    if has_reference(experiment) and not shape.actor_adapters:
        weights += width * shape.parameters
    actor *= 4 if shape.actor_adapters else width
    critic *= 4 if shape.critic_adapters else width
    slots = experiment.actor_rollout_ref.rollout.max_concurrency
    longest = longest_context(experiment, sizes)
    capacity = CACHE_START
    while capacity < longest:
        capacity *= 2
    # While the cache doubles, the old and the new one are both there.
    copies = 1.0 if capacity == CACHE_START else 1.5
    return Memory(
        process=PROCESS,
        weights=weights,
        adam=2 * (actor + critic),
        # Actor and critic learn one after the other.
        gradients=max(actor, critic),
        activations=_activations(experiment, shape, sizes, width),
        cache=int(width * slots * capacity * copies * shape.cache_floats),
    )


def longest_context(experiment: ExperimentConfig, sizes: dict[str, ConversationSize]) -> int:
    """Most tokens a row of an episode can have."""
    window = context_window(experiment)
    turns = experiment.rollout_manager.max_turns
    response = experiment.data.max_response_length
    longest = max(max(size.rows(turns, window, response)) for size in sizes.values())
    return min(longest, experiment.data.max_trajectory_length)


def memory_limit() -> int:
    """Bytes of memory this process may use: the machine's, or its control group's if less."""
    limits = []
    for line in Path("/proc/meminfo").read_text().splitlines() if _is_linux() else []:
        if line.startswith("MemTotal:"):
            limits.append(int(line.split()[1]) * 1024)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        file = Path("/sys/fs/cgroup") / name
        if file.is_file() and (text := file.read_text().strip()).isdigit():
            limits.append(int(text))
    if not limits:
        import os

        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(limits)


def _is_linux() -> bool:
    return Path("/proc/meminfo").is_file()


def _activations(
    experiment: ExperimentConfig,
    shape: ModelShape,
    sizes: dict[str, ConversationSize],
    width: int,
) -> int:
    """Bytes a micro batch keeps for its backward pass."""
    turns, window = experiment.rollout_manager.max_turns, context_window(experiment)
    actor = experiment.actor_rollout_ref.actor
    most = 0
    for size in sizes.values():
        contexts = size.rows(turns, window)
        length = sum(contexts)
        shown = turns if window is None else window * len(contexts)
        tokens = min(actor.ppo_max_token_len, length * actor.ppo_mini_batch_size)
        trajectories = tokens / length
        patches = trajectories * shown * size.patches
        actions = trajectories * turns * size.response
        if not experiment.rollout_manager.use_loss_mask:
            actions = tokens - trajectories * shown * size.image_tokens
        kept = tokens * shape.activation_floats + patches * shape.patch_floats
        logits = 4 * LOGIT_COPIES * actions * shape.vocabulary
        most = max(most, int(width * kept + logits))
    return most
