"""What the verl engine needs on each GPU and each node, estimated before anything is started.

Weights, gradients and Adam's moments follow from the layout: FSDP2 shards all three over every
rank, trained weights are float32, layers are gathered one at a time in the computing type. What a
backward pass keeps, the logits, and what CUDA and vLLM take beside their tensors are estimates; no
GPU was at hand to compare them with.
"""

from dataclasses import dataclass

from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.checks import (
    context_window,
    has_critic,
    has_reference,
    trajectories_per_iteration,
)
from vagen.engines.verl.mapping import (
    BUCKET_MIB,
    SLICE,
    gpus,
    ranks,
    servers,
    shards,
    token_budget,
)
from vagen.plan.shape import GIB, WIDTH, ModelShape, frozen_parameters, trained_parameters
from vagen.plan.sizes import ConversationSize, longest_context
from vagen.run.run import KEEP_CHECKPOINTS

CONTEXT = 2 * GIB
"""CUDA, NCCL and the allocator's slack, per process and GPU."""
VLLM_OVERHEAD = 3 * GIB
"""vLLM's own activations and CUDA graphs, per GPU, within its share."""
ASLEEP = GIB
"""What a sleeping vLLM leaves on the GPU."""
WORKER = 4 * GIB
"""Host memory of a rank: Python, torch, CUDA's pinned buffers."""
SERVER = 4 * GIB
"""Host memory of a rollout server."""
AGENT = int(1.5 * GIB)
"""Host memory of a process that plays episodes."""
PATCH_BYTES = 4 * 3 * 2 * 16 * 16
"""A float32 patch of the vision towers: RGB, two frames deep, 16 pixels square."""
OPTIMIZER = 8
"""Adam's two float32 moments per trained weight."""
LOGIT_COPIES = 3
"""Vocabulary-wide rows of the computing type alive per token: the model's, divided by the
temperature, and their gradient; with an entropy bonus its gradient and the sum of both as well."""
SLICE_COPIES = 3
"""The same in float32, of a slice (`vagen.engines.verl.logits`)."""
SLACK = 0.25
"""Share of a GPU that must be left for activations to be kept: they are an estimate."""
UNFUSED_COPIES = 3
"""Scores, weights and their gradient where attention is not fused."""


@dataclass(frozen=True, slots=True)
class Network:
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

    actor: Network
    critic: Network | None
    gathered: int
    """Layers gathered from all ranks, and their gradients before they are scattered."""
    activations: int
    attention: int
    """What attention keeps of each pair of tokens, where no fused kernel reads float32."""
    logits: int
    serving: int
    """What rollout servers hold while a network learns."""
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


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes on one node."""

    processes: int
    reference: int
    offloaded: int
    loading: int
    """Most while weights are read, given back afterwards."""
    episodes: int
    """Frames and rows of an iteration, in Ray's object store and in the workers."""
    saving: int
    """Copy of a checkpoint, while it is written: the policy's weights, gathered, and the pieces of
    all ranks. The next episodes are played meanwhile."""

    @property
    def peak(self) -> int:
        """Bytes at the worst moment: while weights are loaded, or in an iteration."""
        resting = self.reference + self.offloaded
        return self.processes + max(self.loading, resting + self.episodes + self.saving)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Bytes on the disk that holds the run."""

    one: int
    count: int
    """How many there are at once, the one that is being written among them."""

    @property
    def peak(self) -> int:
        """Bytes of all of them."""
        return self.one * self.count


@dataclass(frozen=True, slots=True)
class Throughput:
    """Tokens of an iteration, and how many episodes are played side by side."""

    tokens: int
    """Tokens of all trajectories if every turn is used."""
    optimizer_steps: int
    tokens_per_rank: int
    """Tokens that one rank gets in an optimizer step."""
    micro_batches: int
    """Micro batches of an optimizer step on one rank."""
    cache_tokens: int
    """Key/value cache of all servers together."""
    concurrency: int
    """Trajectories that fit the cache at full length, all servers together."""


def trained_network(weights: int, trained: int, infra: InfraConfig) -> Network:
    """A rank's shard of a network with so many weights, so many of them trained."""
    count, layout = shards(infra), infra.verl
    held, adam = 4 * weights // count, OPTIMIZER * trained // count
    resting = (0 if layout.param_offload else held) + (0 if layout.optimizer_offload else adam)
    return Network(weights=held, adam=adam, gradients=4 * trained // count, resting=resting)


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
    bonus = 2 if experiment.actor_rollout_ref.actor.entropy_coeff else 0
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
    return min(token_budget(experiment, infra), _step_tokens(experiment, infra, sizes))


def _step_tokens(
    experiment: ExperimentConfig, infra: InfraConfig, sizes: dict[str, ConversationSize]
) -> int:
    """Tokens that one rank gets of an optimizer step."""
    trajectories = -(-experiment.actor_rollout_ref.actor.ppo_mini_batch_size // ranks(infra))
    return trajectories * max(_tokens(experiment, size) for size in sizes.values())


def _tokens(experiment: ExperimentConfig, size: ConversationSize) -> int:
    """Tokens of a trajectory in all its rows, as an expert's responses make it."""
    turns, window = experiment.rollout_manager.max_turns, context_window(experiment)
    return sum(size.rows(turns, window))


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
    turns, window = experiment.rollout_manager.max_turns, context_window(experiment)
    most = 0
    for size in sizes.values():
        rows = size.rows(turns, window)
        shown = turns if window is None else window * len(rows)
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


def checkpoints(experiment: ExperimentConfig, shape: ModelShape) -> Checkpoints:
    """The checkpoints of a run: the policy's weights, and what both networks need to go on."""
    trained = sum(trained_parameters(experiment, shape))
    return Checkpoints(
        one=4 * shape.parameters + (4 + OPTIMIZER) * trained,
        # What the guard would go back to stays as well.
        count=KEEP_CHECKPOINTS + experiment.trainer.guard.enable,
    )


def throughput(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    shape: ModelShape,
    sizes: dict[str, ConversationSize],
    memory: GpuMemory,
) -> Throughput:
    """Tokens and concurrency of an iteration."""
    actor = experiment.actor_rollout_ref.actor
    trajectories = trajectories_per_iteration(experiment)
    mean = sum(_tokens(experiment, size) for size in sizes.values()) / len(sizes)
    step = _step_tokens(experiment, infra, sizes)
    parallel = infra.verl.tensor_model_parallel_size
    # Each rank of a server holds its heads' part of every token; a head is never split.
    share = max(1, -(-shape.kv_heads // parallel)) / shape.kv_heads
    per_token = WIDTH[infra.dtype] * shape.cache_floats * share
    cache_tokens = int(max(memory.cache, 0) / per_token)
    return Throughput(
        tokens=int(trajectories * mean),
        optimizer_steps=-(-trajectories // actor.ppo_mini_batch_size) * actor.ppo_epochs,
        tokens_per_rank=step,
        micro_batches=-(-step // token_budget(experiment, infra)),
        cache_tokens=cache_tokens * servers(infra),
        concurrency=cache_tokens // longest_context(experiment, sizes) * servers(infra),
    )


def host_memory(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    shape: ModelShape,
    sizes: dict[str, ConversationSize],
    memory: GpuMemory,
) -> HostMemory:
    """Memory of one node."""
    layout, local = infra.verl, infra.verl.n_gpus_per_node
    networks = [network for network in (memory.actor, memory.critic) if network is not None]
    offloaded = 0
    if layout.param_offload:
        offloaded += local * sum(network.weights for network in networks)
    if layout.optimizer_offload:
        offloaded += local * sum(network.adam for network in networks)
    reference = 0
    if has_reference(experiment) and not shape.actor_adapters:
        # verl keeps the reference in pinned host memory, sharded.
        reference = local * WIDTH[infra.dtype] * shape.parameters // shards(infra)
    # verl reads the whole float32 model in every rank if the output layer is the embedding, else in
    # the first one; one network after the other.
    readers = local if shape.tied else 1
    # Frames cross the object store as PNG, which is little; decoded they are float32 patches.
    turns = experiment.rollout_manager.max_turns
    patches = max(size.patches for size in sizes.values())
    shown = trajectories_per_iteration(experiment) * turns * patches
    return HostMemory(
        processes=gpus(infra) // layout.nnodes * WORKER
        + servers(infra) // layout.nnodes * SERVER
        + layout.agent_workers * AGENT,
        reference=reference,
        offloaded=offloaded,
        loading=readers * 4 * shape.parameters,
        episodes=int(shown * PATCH_BYTES / layout.nnodes),
        saving=4 * shape.parameters
        + local * (4 + OPTIMIZER) * sum(trained_parameters(experiment, shape)) // shards(infra),
    )


def fits(
    infra: InfraConfig, memory: GpuMemory, rates: Throughput, longest: int, slack: float = 0.0
) -> bool:
    """Whether a GPU holds it with a share of it to spare, and vLLM one sequence of full length."""
    limit = infra.verl.gpu_memory_gib * GIB * (1 - slack)
    cached = infra.verl.rollout == "torch" or rates.cache_tokens // servers(infra) >= longest
    return memory.peak <= limit and cached


def decided(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    shape: ModelShape,
    sizes: dict[str, ConversationSize],
) -> InfraConfig:
    """The infra with `gradient_checkpointing: auto` replaced: off where a GPU can keep all."""
    if infra.verl.gradient_checkpointing != "auto":
        return infra

    def with_it(switch: bool) -> InfraConfig:
        layout = infra.verl.model_copy(update={"gradient_checkpointing": switch})
        return infra.model_copy(update={"verl": layout})

    memory = gpu_memory(experiment, with_it(False), shape, sizes)
    rates = throughput(experiment, infra, shape, sizes, memory)
    longest = experiment.data.max_trajectory_length
    return with_it(not fits(infra, memory, rates, longest, slack=SLACK))
