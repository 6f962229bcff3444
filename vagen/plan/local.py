"""What the local engine needs in memory, estimated before anything is loaded.

The estimate counts what grows with the model and the batch: weights, gradients, Adam's moments, the
key/value cache of a rollout, what a backward pass keeps per token, and the frames that a processor
remembers. It rejects what cannot fit, and is within a factor of two of measurements.
`frozenlake-tiny` peaked at 1.9 GiB on one and two CPU threads (estimate 2.3); lakes of 16 tiles a
side and 1,650 tokens an episode at 2.9 GiB (estimate 2.8), with frames of 512 or 4,096 pixels.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.checks import has_reference
from vagen.models.processor import IMAGE_CACHE_BYTES
from vagen.plan.shape import GIB, WIDTH, ModelShape, frozen_parameters, trained_parameters
from vagen.plan.sizes import ConversationSize, longest_context, shown_turns

PROCESS = int(0.8 * GIB)
"""Python with torch and transformers, before a model is loaded."""
CACHE_START = 512
"""Tokens per slot the key/value cache begins with; it doubles from there."""
LOGIT_COPIES = 5
"""Vocabulary-wide float32 rows alive per action token: logits, tempered, their logarithm, entropy's
probabilities, and the gradient."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes by purpose."""

    process: int
    weights: int
    adam: int
    gradients: int
    activations: int
    cache: int
    frames: int = 0
    on_cpu: bool = True

    @property
    def resting(self) -> int:
        """What is there at any time."""
        return self.process + self.weights + self.adam + self.frames

    @property
    def rollout(self) -> int:
        """Peak while episodes run, in a process that has not learnt."""
        return self.resting + self.cache

    @property
    def update(self) -> int:
        """Peak while the networks learn, likewise."""
        return self.resting + self.gradients + self.activations

    @property
    def peak(self) -> int:
        """The larger of both peaks; on a CPU both at once: a process keeps what it frees."""
        return self.update + self.cache if self.on_cpu else max(self.rollout, self.update)


def estimate(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    shape: ModelShape,
    sizes: dict[str, ConversationSize],
) -> MemoryEstimate:
    """Memory of the local engine."""
    width = WIDTH[infra.dtype]
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
    return MemoryEstimate(
        process=PROCESS,
        weights=weights,
        adam=2 * (actor + critic),
        # Actor and critic learn one after the other.
        gradients=max(actor, critic),
        activations=_activations(experiment, shape, sizes, width),
        cache=int(width * slots * capacity * copies * shape.cache_floats),
        frames=IMAGE_CACHE_BYTES if any(size.patches for size in sizes.values()) else 0,
        on_cpu=_on_cpu(infra),
    )


def memory_limit() -> int:
    """Bytes of memory this process may use: the machine's, or its control group's if less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        file = Path("/sys/fs/cgroup") / name
        if file.is_file() and (text := file.read_text().strip()).isdigit():
            limits.append(int(text))
    return min(limits)


def device_memory(infra: InfraConfig) -> tuple[str, int]:
    """Name and bytes of what holds the networks: the accelerator, or RAM on a CPU."""
    import torch

    if _on_cpu(infra):
        return "RAM", memory_limit()
    device = torch.device("cuda" if infra.device == "auto" else infra.device)
    properties = torch.cuda.get_device_properties(device)
    return properties.name, properties.total_memory


def _on_cpu(infra: InfraConfig) -> bool:
    import torch

    return infra.device == "cpu" or not torch.cuda.is_available()


def _activations(
    experiment: ExperimentConfig,
    shape: ModelShape,
    sizes: dict[str, ConversationSize],
    width: int,
) -> int:
    """Bytes a micro batch keeps for its backward pass."""
    turns, shown = experiment.rollout_manager.max_turns, sum(shown_turns(experiment))
    actor = experiment.actor_rollout_ref.actor
    most = 0
    for size in sizes.values():
        contexts = size.rows_of(experiment)
        length = sum(contexts)
        tokens = min(actor.ppo_max_token_len, length * actor.ppo_mini_batch_size)
        trajectories = tokens / length
        patches = trajectories * shown * size.patches
        if frozen_parameters(experiment, shape):
            patches = 0  # no gradient reaches the tower
        actions = trajectories * turns * size.response
        if not experiment.rollout_manager.use_loss_mask:
            actions = tokens - trajectories * shown * size.image_tokens
        kept = tokens * shape.activation_floats + patches * shape.patch_floats
        logits = 4 * LOGIT_COPIES * actions * shape.vocabulary
        most = max(most, int(width * kept + logits))
    return most
