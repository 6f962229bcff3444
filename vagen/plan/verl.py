"""What the verl engine needs on each node and on the disk, and whether its GPUs hold it."""

from dataclasses import dataclass

from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.checks import has_reference, trajectories_per_iteration
from vagen.engines.verl.mapping import gpus, servers, shards, token_budget
from vagen.plan.gpu import OPTIMIZER, GpuMemory, gpu_memory, step_tokens, trajectory_tokens
from vagen.plan.shape import GIB, WIDTH, ModelShape, trained_parameters
from vagen.plan.sizes import ConversationSize, longest_context
from vagen.run.layout import KEEP_CHECKPOINTS

WORKER = 4 * GIB
"""Host memory of a rank: Python, torch, CUDA's pinned buffers."""
SERVER = 4 * GIB
"""Host memory of a rollout server."""
AGENT = int(1.5 * GIB)
"""Host memory of a process that plays episodes."""
PATCH_BYTES = 4 * 3 * 2 * 16 * 16
"""A float32 patch of the vision towers: RGB, two frames deep, 16 pixels square."""
SLACK = 0.25
"""Share of a GPU that must be left for activations to be kept: they are an estimate."""


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
    mean = sum(trajectory_tokens(experiment, size) for size in sizes.values()) / len(sizes)
    step = step_tokens(experiment, infra, sizes)
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
