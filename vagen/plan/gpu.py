"""What the verl engine needs on each GPU, estimated before anything is started.

Weights, gradients and Adam's moments follow from the layout: FSDP2 shards all three over every
rank, trained weights are float32, layers are gathered one at a time in the computing type. What a
backward pass keeps, the logits, and what CUDA and vLLM take beside their tensors are estimates; no
GPU was at hand to compare them with.
"""

from dataclasses import dataclass

from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.checks import has_critic
from vagen.engines.verl.mapping import BUCKET_MIB, SLICE, ranks, servers, shards, token_budget
from vagen.plan.shape import GIB, WIDTH, ModelShape, frozen_parameters, trained_parameters
from vagen.plan.sizes import ConversationSize, longest_context, shown_turns

CONTEXT = 2 * GIB
"""CUDA, NCCL and the allocator's slack, per process and GPU."""
VLLM_OVERHEAD = 3 * GIB
"""vLLM's own activations and CUDA graphs, per GPU, within its share."""
ASLEEP = GIB
"""Memory that a sleeping vLLM keeps on the GPU."""
OPTIMIZER = 8
"""Adam's two float32 moments per trained weight."""
LOGIT_COPIES = 3
"""Vocabulary-wide rows of the computing type alive per token: the model's, divided by the
temperature, and their gradient; with an entropy bonus its gradient and the sum of both as well."""
SLICE_COPIES = 3
"""The same in float32, of a slice (`vagen.engines.verl.logits`)."""
UNFUSED_COPIES = 3
"""Scores, weights and their gradient where attention is not fused."""


@dataclass(frozen=True, slots=True)
class NetworkMemory:
    """Bytes that a network in training takes on one GPU."""

    weights: int
    adam: int
    gradients: int
    resting: int
    """Weights and moments that stay on the GPU while the network is not used."""

    @property
    def working(self) -> int:
        """Bytes while the network learns."""
        return self.weights + self.adam + self.gradients


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Bytes on one GPU."""

    actor: NetworkMemory
    critic: NetworkMemory | None
    gathered: int
    """Layers gathered from all ranks, and their gradients before they are scattered."""
    activations: int
    attention: int
    """Attention scores kept for each pair of tokens, where no fused kernel reads float32."""
    logits: int
    serving: int
    """Memory of rollout servers while a network learns."""
    vllm: int
    """vLLM's share; 0 for other rollouts."""
    vllm_weights: int
    cache: int
    """Key/value cache that remains of vLLM's share; negative if its weights do not fit."""
    received: int
    """Weights on their way into a server that has a GPU of its own; 0 if servers share GPUs."""

    @property
    def resting(self) -> int:
        """Bytes of both networks that stay on the GPU while episodes are played."""
        return self.actor.resting + (self.critic.resting if self.critic else 0)

    @property
    def rollout(self) -> int:
        """Peak while episodes are played, on a GPU that plays."""
        beside = self.received or self.resting
        return CONTEXT + beside + (self.vllm or self.vllm_weights + self.cache)

    @property
    def update(self) -> int:
        """Peak while a network learns."""
        learning = self.actor.working + self.logits + self.resting - self.actor.resting
        if self.critic:
            learning = max(learning, self.critic.working + self.actor.resting)
        working = self.gathered + self.activations + self.attention
        return CONTEXT + self.serving + learning + working

    @property
    def peak(self) -> int:
        """The larger of both peaks."""
        return max(self.rollout, self.update)


def trained_network(weights: int, trained: int, infra: InfraConfig) -> NetworkMemory:
    """A rank's shard of a network with so many weights, so many of them trained."""
    count, layout = shards(infra), infra.verl
    held, adam = 4 * weights // count, OPTIMIZER * trained // count
    resting = (0 if layout.param_offload else held) + (0 if layout.optimizer_offload else adam)
    return NetworkMemory(weights=held, adam=adam, gradients=4 * trained // count, resting=resting)


def gpu_memory(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    shape: ModelShape,
    sizes: dict[str, ConversationSize],
) -> GpuMemory:
    """Memory of one GPU."""
    layout, width = infra.verl, WIDTH[infra.dtype]
    trained_actor, trained_critic = trained_parameters(experiment, shape)
    actor = trained_network(shape.parameters + shape.actor_adapters, trained_actor, infra)
    critic = None
    if has_critic(experiment):
        weights = shape.backbone_parameters + shape.critic_adapters + shape.hidden + 1
        critic = trained_network(weights, trained_critic, infra)
    tokens = micro_batch_tokens(experiment, infra, sizes)
    vllm = int(layout.gpu_memory_utilization * layout.gpu_memory_gib * GIB)
    parallel = layout.tensor_model_parallel_size
    weights = width * shape.parameters // parallel
    cache = vllm - weights - VLLM_OVERHEAD
    serving = ASLEEP
    if layout.rollout == "torch":
        slots = -(-experiment.actor_rollout_ref.rollout.max_concurrency // servers(infra))
        cache = width * slots * longest_context(experiment, sizes) * shape.cache_floats
        vllm, serving = 0, weights
    if layout.rollout_gpus:
        serving = 0
    elif experiment.rollout_manager.one_step_off:
        serving = vllm or weights + cache
    actor_config = experiment.actor_rollout_ref.actor
    bonus = 2 if actor_config.entropy_coeff or actor_config.entropy_ctrl.target else 0
    return GpuMemory(
        actor=actor,
        critic=critic,
        gathered=_gathered(shape, width, frozen=bool(shape.actor_adapters)),
        activations=_activations(experiment, infra, shape, sizes, tokens),
        attention=_attention(experiment, infra, shape, sizes, tokens),
        logits=shape.vocabulary
        * (tokens * width * (LOGIT_COPIES + bonus) + min(tokens, SLICE) * 4 * SLICE_COPIES),
        serving=serving,
        vllm=vllm,
        vllm_weights=weights,
        cache=cache,
        received=_received(shape) if layout.rollout_gpus else 0,
    )


def _received(shape: ModelShape) -> int:
    """Two buckets, one that is handed on, and the largest weight, whose parts are put together."""
    return 3 * (BUCKET_MIB << 20) + 4 * shape.vocabulary * shape.hidden


def micro_batch_tokens(
    experiment: ExperimentConfig, infra: InfraConfig, sizes: dict[str, ConversationSize]
) -> int:
    """Most tokens of a micro batch on one rank."""
    return min(token_budget(experiment, infra), step_tokens(experiment, infra, sizes))


def step_tokens(
    experiment: ExperimentConfig, infra: InfraConfig, sizes: dict[str, ConversationSize]
) -> int:
    """Tokens that one rank gets of an optimizer step."""
    trajectories = -(-experiment.actor_rollout_ref.actor.ppo_mini_batch_size // ranks(infra))
    return trajectories * max(trajectory_tokens(experiment, size) for size in sizes.values())


def trajectory_tokens(experiment: ExperimentConfig, size: ConversationSize) -> int:
    """Tokens of a trajectory in all its rows, as an expert's responses make it."""
    return sum(size.rows_of(experiment))


def _gathered(shape: ModelShape, width: int, *, frozen: bool) -> int:
    """The root unit (embedding, output layer, norms) and two layers; their gradients as well."""
    embedding = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    attention = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim * shape.hidden
    layer = attention + 3 * shape.hidden * shape.intermediate
    gathered = width * (embedding + 2 * layer)
    return gathered if frozen else gathered + width * embedding + 4 * layer


def _activations(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    shape: ModelShape,
    sizes: dict[str, ConversationSize],
    tokens: int,
) -> int:
    """What a backward pass keeps: everything, or each layer's input and one layer's inside."""
    width = WIDTH[infra.dtype]
    shown = sum(shown_turns(experiment))
    most = 0
    for size in sizes.values():
        rows = size.rows_of(experiment)
        patches = tokens / sum(rows) * shown * size.patches
        if frozen_parameters(experiment, shape):
            patches = 0  # no gradient reaches the tower
        kept = tokens * shape.activation_floats + patches * shape.patch_floats
        if infra.verl.gradient_checkpointing is not False:
            kept = tokens * (shape.layers * shape.hidden + shape.activation_floats / shape.layers)
            if shape.vision_layers:
                inside = shape.patch_floats / shape.vision_layers
                kept += patches * (shape.vision_layers * shape.vision_hidden + inside)
        most = max(most, int(width * kept))
    return most


def _attention(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    shape: ModelShape,
    sizes: dict[str, ConversationSize],
    tokens: int,
) -> int:
    """Scores of each token with all of its row: torch fuses them in half precision only."""
    if infra.dtype != "float32":
        return 0
    pairs = shape.heads * tokens * longest_context(experiment, sizes)
    kept = 0 if infra.verl.gradient_checkpointing is not False else shape.layers - 1
    return 4 * pairs * (UNFUSED_COPIES + kept)
