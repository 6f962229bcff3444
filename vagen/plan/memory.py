"""What a run needs, estimated before anything is started: a sum of bytes for each limit.

Weights, gradients, Adam's moments and caches follow from the configuration. Activations, logits
and what a process takes beside its tensors are estimates. Those of the local engine are within a
factor of two of measurements; no GPU was at hand to compare the distributed engine's with. FSDP2
shards trained float32 weights, gradients and moments over every rank, and gathers layers one at a
time in the computing type.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.schema import has_reference, trajectories_per_iteration
from vagen.engines.verl.mapping import (
    BUCKET_MIB,
    SLICE,
    gpus,
    is_cpu,
    ranks,
    servers,
    shards,
    token_budget,
)
from vagen.experiment.checks import has_critic
from vagen.models.processor import IMAGE_CACHE_BYTES
from vagen.plan.shape import GIB, WIDTH, ModelShape, frozen_parameters, trained_parameters
from vagen.plan.sizes import ConversationSize, longest_context, shown_turns
from vagen.run.layout import KEEP_CHECKPOINTS

Sizes = dict[str, ConversationSize]
Bytes = dict[str, int]
"""Bytes by purpose."""

PROCESS = int(0.8 * GIB)
"""Python with torch and transformers, before a model is loaded."""
CACHE_START = 512
"""Tokens per slot the local engine's key/value cache begins with; it doubles from there."""
CONTEXT = 2 * GIB
"""CUDA, NCCL and the allocator's slack, per process and GPU."""
VLLM_OVERHEAD = 3 * GIB
"""vLLM's own activations and CUDA graphs, per GPU, within its share."""
ASLEEP = GIB
"""Memory that a sleeping vLLM keeps on the GPU."""
WORKER, SERVER, AGENT = 4 * GIB, 4 * GIB, int(1.5 * GIB)
"""Host memory of a rank, a rollout server, and a process that plays episodes."""
OPTIMIZER = 8
"""Adam's two float32 moments per trained weight."""
PATCH_BYTES = 4 * 3 * 2 * 16 * 16
"""A float32 patch of the vision towers: RGB, two frames deep, 16 pixels square."""
SLACK = 0.25
"""Share of a GPU that must be left for activations to be kept: they are an estimate."""
BATCH_BYTES, EVALUATION_BYTES = 16, 44
"""Bytes on disk of a token in an iteration's batches, and in an evaluation with its page."""
FORWARDS = 3
"""Forward passes that a token's backward pass and its own forward pass are worth."""
PROBE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes needed of something that has a limit."""

    what: str
    parts: Bytes
    limit: float | None
    """Bytes there are; None if that is not known."""
    source: str
    """The device, or the option that says how much there is."""

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())

    @property
    def is_met(self) -> bool:
        """Whether there is enough."""
        return self.limit is None or self.total <= self.limit


def needs(
    experiment: ExperimentConfig, infra: InfraConfig, shape: ModelShape, sizes: Sizes
) -> list[Need]:
    """Everything a run needs, on one GPU and one node each."""
    if infra.engine == "local":
        return local_needs(experiment, infra, shape, sizes)
    layout = infra.verl
    found = []
    if not is_cpu(infra):
        rollout, update = gpu_memory(experiment, infra, shape, sizes)
        limit, option = layout.gpu_memory_gib * GIB, "infra.verl.gpu_memory_gib"
        found.append(Need("a GPU in the update", update, limit, option))
        found.append(Need("a GPU in the rollout", rollout, limit, option))
        if layout.rollout == "vllm":
            longest = experiment.data.max_trajectory_length
            cache = {"key/value cache": longest * cache_bytes(infra, shape)}
            options = "infra.verl.gpu_memory_utilization, data.max_trajectory_length"
            what = f"one sequence of {longest:,} tokens"
            found.append(Need(what, cache, rollout["key/value cache"], options))
    host = layout.host_memory_gib and layout.host_memory_gib * GIB
    playing, loading = host_memory(experiment, infra, shape, sizes)
    # On a CPU the networks take what a GPU would hold in the node's memory as well.
    node = "a node, without networks" if is_cpu(infra) else "a node"
    found.append(Need(node, playing, host, "infra.verl.host_memory_gib"))
    found.append(Need("a node that loads weights", loading, host, "infra.verl.host_memory_gib"))
    one, count = checkpoints(experiment, shape)
    scratch = layout.scratch_gib and layout.scratch_gib * GIB
    saved = {f"number {number}": one for number in range(1, count + 1)}
    what = f"the disk for {count} checkpoints"
    found.append(Need(what, saved, scratch, "infra.verl.scratch_gib"))
    return found


def local_needs(
    experiment: ExperimentConfig, infra: InfraConfig, shape: ModelShape, sizes: Sizes
) -> list[Need]:
    """Memory of the local engine, on a CPU or on one GPU."""
    width, options = WIDTH[infra.dtype], infra.local
    actor_config = experiment.actor_rollout_ref.actor
    actor, critic = trained_parameters(experiment, shape)
    # What is frozen in one network is read by the others; adapters are float32.
    weights = width * shape.parameters + 4 * (shape.actor_adapters + shape.critic_adapters)
    if critic:
        weights += 4 * (shape.hidden + 1)
        if not (shape.actor_adapters and shape.critic_adapters):
            weights += width * shape.backbone_parameters
    if has_reference(experiment) and not shape.actor_adapters:
        weights += width * shape.parameters
    resting = {"process": PROCESS, "weights": weights, "Adam": OPTIMIZER * (actor + critic)}
    if width < 4:
        rounded = actor * (not shape.actor_adapters) + critic * (not shape.critic_adapters)
        resting["float32 masters"] = 4 * rounded
    if any(size.patches for size in sizes.values()):
        resting["processed frames"] = IMAGE_CACHE_BYTES
    rollout = experiment.actor_rollout_ref.rollout
    levels = sum(max(spec.val_size, spec.test_size) for spec in experiment.envs.values())
    episodes = max(trajectories_per_iteration(experiment), levels * rollout.val_kwargs.n)
    slots = min(rollout.max_concurrency, episodes)
    capacity, longest = CACHE_START, longest_context(experiment, sizes)
    while capacity < longest:
        capacity *= 2
    # While the cache doubles, the old and the new one are both there.
    copies = 1.0 if capacity == CACHE_START else 1.5
    cache = {"key/value cache": int(width * slots * capacity * copies * shape.cache_floats)}
    length = max(size.trajectory_of(experiment) for size in sizes.values())
    tokens = min(actor_config.ppo_max_token_len, length * actor_config.ppo_mini_batch_size)
    sampled = _sampled(experiment, sizes, tokens)
    everything = not options.gradient_checkpointing
    kept = _kept_numbers(experiment, shape, sizes, tokens, everything=everything)
    update = {
        "gradients": 4 * max(actor, critic),  # actor and critic learn one after the other
        "activations": int(width * kept),
        # Logits, tempered, their logarithm, entropy's probabilities, and the gradient.
        "logits": 4 * 5 * (sampled if everything else min(sampled, SLICE)) * shape.vocabulary,
    }
    import torch

    visible = torch.cuda.is_available()
    if infra.device == "cpu" or not (visible or options.gpu_memory_gib):
        # A process keeps what it frees.
        parts = {**resting, **cache, **update}
        return [Need("the local engine", parts, memory_limit(), "RAM")]
    del resting["process"]
    resting["CUDA"] = CONTEXT
    if options.gpu_memory_gib:
        limit, source = options.gpu_memory_gib * GIB, "infra.local.gpu_memory_gib"
    else:
        device = torch.cuda.get_device_properties(
            torch.device("cuda" if infra.device == "auto" else infra.device)
        )
        limit, source = device.total_memory, device.name
    phases = {"update": {**resting, **update}, "rollout": {**resting, **cache}}
    return [
        Need(f"the local engine in the {phase}", parts, limit, source)
        for phase, parts in phases.items()
    ]


def memory_limit() -> int:
    """Bytes of memory this process may use: the machine's, or its control group's if less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        file = Path("/sys/fs/cgroup") / name
        if file.is_file() and (text := file.read_text().strip()).isdigit():
            limits.append(int(text))
    return min(limits)


def gpu_memory(
    experiment: ExperimentConfig, infra: InfraConfig, shape: ModelShape, sizes: Sizes
) -> tuple[Bytes, Bytes]:
    """A GPU of the distributed engine while episodes are played, and while networks learn."""
    layout, width = infra.verl, WIDTH[infra.dtype]
    actor_weights = shape.parameters + shape.actor_adapters
    critic_weights = shape.backbone_parameters + shape.critic_adapters + shape.hidden + 1
    networks = [
        {
            "weights": 4 * weights // shards(infra),
            "gradients": 4 * trained // shards(infra),
            "Adam": OPTIMIZER * trained // shards(infra),
        }
        for weights, trained in zip(
            (actor_weights, critic_weights), trained_parameters(experiment, shape), strict=True
        )
    ]
    actor, critic = networks
    if not has_critic(experiment):
        critic = dict.fromkeys(critic, 0)
    rests = {"weights": not layout.param_offload, "Adam": not layout.optimizer_offload}
    actor_rests, critic_rests = (
        sum(network[name] for name, stays in rests.items() if stays) for network in (actor, critic)
    )

    server = {"rollout weights": width * shape.parameters // layout.tensor_model_parallel_size}
    if layout.rollout == "torch":
        slots = -(-experiment.actor_rollout_ref.rollout.max_concurrency // servers(infra))
        cache = width * slots * longest_context(experiment, sizes) * shape.cache_floats
        asleep = server["rollout weights"]
    else:
        server["vLLM itself"] = VLLM_OVERHEAD
        share = int(layout.gpu_memory_utilization * layout.gpu_memory_gib * GIB)
        cache, asleep = max(share - sum(server.values()), 0), ASLEEP
    server["key/value cache"] = cache
    beside = {"networks": actor_rests + critic_rests}
    if layout.rollout_gpus:
        # Two buckets, one that is handed on, and the largest weight, whose parts are put together.
        received = 3 * (BUCKET_MIB << 20) + 4 * shape.vocabulary * shape.hidden
        beside, asleep = {"received weights": received}, 0
    elif experiment.rollout_manager.one_step_off:
        asleep = sum(server.values())

    tokens = min(token_budget(experiment, infra), step_tokens(experiment, infra, sizes))
    # Rows of the vocabulary alive per sampled token: logits and their gradient. A slice of each row
    # is in float32 as well, three times.
    sampled = _sampled(experiment, sizes, tokens)
    logits = shape.vocabulary * (sampled * width * 2 + min(sampled, SLICE) * 4 * 3)
    everything = infra.verl.gradient_checkpointing is False
    kept = width * _kept_numbers(experiment, shape, sizes, tokens, everything=everything)
    if infra.dtype == "float32":
        # Attention is fused in half precision only: scores, weights and gradient of each pair.
        pairs = shape.heads * tokens * longest_context(experiment, sizes)
        kept += 4 * pairs * (shape.layers + 2 if everything else 3)
    learning = {
        "gathered layers": _gathered(shape, width),
        "activations": int(kept),
        "servers": asleep,
    }
    update = max(
        {**actor, "logits": logits, "resting critic": critic_rests},
        {**critic, "resting actor": actor_rests},
        key=lambda parts: sum(parts.values()),
    )
    return {"CUDA": CONTEXT, **beside, **server}, {"CUDA": CONTEXT, **update, **learning}


def _sampled(experiment: ExperimentConfig, sizes: Sizes, tokens: int) -> int:
    """Tokens of a batch at which logits are computed."""
    if not experiment.rollout_manager.use_loss_mask:
        return tokens
    length = max(size.trajectory_of(experiment) for size in sizes.values())
    answers = max(size.response for size in sizes.values())
    return tokens * experiment.rollout_manager.max_turns * answers // length


def _gathered(shape: ModelShape, width: int) -> int:
    """The root unit (embedding, output layer, norms) and two layers; their gradients as well."""
    embedding = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    attention = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim * shape.hidden
    layer = attention + 3 * shape.hidden * shape.intermediate
    gathered = width * (embedding + 2 * layer)
    return gathered if shape.actor_adapters else gathered + width * embedding + 4 * layer


def _kept_numbers(
    experiment: ExperimentConfig, shape: ModelShape, sizes: Sizes, tokens: int, *, everything: bool
) -> float:
    """What a backward pass keeps: everything, or each layer's input and one layer's inside."""
    patches = tokens * max(
        size.patches
        * sum(shown_turns(experiment, drops=size.drops))
        / size.trajectory_of(experiment)
        for size in sizes.values()
    )
    if frozen_parameters(experiment, shape):
        patches = 0  # no gradient reaches the tower
    if everything:
        return tokens * shape.activation_floats + patches * shape.patch_floats
    kept = tokens * (shape.layers * shape.hidden + shape.activation_floats / shape.layers)
    if shape.vision_layers:
        inside = shape.patch_floats / shape.vision_layers
        kept += patches * (shape.vision_layers * shape.vision_hidden + inside)
    return kept


def step_tokens(experiment: ExperimentConfig, infra: InfraConfig, sizes: Sizes) -> int:
    """Tokens that one rank gets of an optimizer step."""
    trajectories = -(-experiment.actor_rollout_ref.actor.ppo_mini_batch_size // ranks(infra))
    return trajectories * max(size.trajectory_of(experiment) for size in sizes.values())


def cache_bytes(infra: InfraConfig, shape: ModelShape) -> int:
    """Bytes that a token takes of the key/value cache of one GPU of a server."""
    # Each rank of a server holds its heads' part of every token; a head is never split.
    heads = -(-shape.kv_heads // infra.verl.tensor_model_parallel_size)
    return WIDTH[infra.dtype] * shape.cache_floats * heads // shape.kv_heads


def host_memory(
    experiment: ExperimentConfig, infra: InfraConfig, shape: ModelShape, sizes: Sizes
) -> tuple[Bytes, Bytes]:
    """A node of the distributed engine in an iteration, and while weights are loaded."""
    layout, local = infra.verl, infra.verl.n_gpus_per_node
    trained = sum(trained_parameters(experiment, shape))
    weights = shape.parameters + shape.actor_adapters
    if has_critic(experiment):
        weights += shape.backbone_parameters + shape.critic_adapters + shape.hidden + 1
    offloaded = 4 * weights * layout.param_offload + OPTIMIZER * trained * layout.optimizer_offload
    # verl keeps the reference in pinned host memory, sharded.
    reference = has_reference(experiment) and not shape.actor_adapters
    # Frames cross the object store as PNG, which is little; decoded they are float32 patches.
    patches = max(size.patches for size in sizes.values())
    shown = trajectories_per_iteration(experiment) * experiment.rollout_manager.max_turns * patches
    processes = gpus(infra) // layout.nnodes * WORKER + layout.agent_workers * AGENT
    playing = {
        "processes": processes + servers(infra) // layout.nnodes * SERVER,
        "reference": local * WIDTH[infra.dtype] * shape.parameters * reference // shards(infra),
        "offloaded": local * offloaded // shards(infra),
        "frames": shown * PATCH_BYTES // layout.nnodes,
        # The policy's weights, gathered, and the pieces of all ranks; the next episodes are played
        # meanwhile.
        "saving": 4 * shape.parameters + local * (4 + OPTIMIZER) * trained // shards(infra),
    }
    # verl reads the whole float32 model in every rank if the output layer is the embedding, else in
    # the first one; one network after the other.
    readers = local if shape.tied else 1
    return playing, {"processes": playing["processes"], "weights": readers * 4 * shape.parameters}


def checkpoints(experiment: ExperimentConfig, shape: ModelShape) -> tuple[int, int]:
    """Bytes of a checkpoint, the policy's weights and what both networks need to go on, and how
    many there are at once, with the one that is being written.
    """
    trained = sum(trained_parameters(experiment, shape))
    one = 4 * shape.parameters + (4 + OPTIMIZER) * trained
    # What the guard would go back to stays as well.
    return one, KEEP_CHECKPOINTS + experiment.trainer.guard.enable


def keeps_activations(
    experiment: ExperimentConfig, infra: InfraConfig, shape: ModelShape, sizes: Sizes
) -> bool:
    """Whether a GPU keeps all activations with room to spare: no need to compute them again."""
    layout = infra.verl.model_copy(update={"gradient_checkpointing": False})
    phases = gpu_memory(experiment, infra.model_copy(update={"verl": layout}), shape, sizes)
    limit = layout.gpu_memory_gib * GIB * (1 - SLACK)
    return all(sum(parts.values()) <= limit for parts in phases)


def disk(experiment: ExperimentConfig, shape: ModelShape, sizes: Sizes) -> Bytes:
    """What a run holds in the end, if all turns of every episode are used.

    Meant to be right within a factor of two or three, like `iteration_seconds`.
    """
    trainer, attempts = experiment.trainer, experiment.actor_rollout_ref.rollout.val_kwargs.n
    iterations = trainer.total_training_steps
    kept = min(iterations, trainer.keep_iterations or iterations)
    validations = sum(trainer.validates_after(number) for number in range(iterations))
    batches = evaluations = 0
    for env_id, size in sizes.items():
        frames = size.frame_bytes * (1 + experiment.rollout_manager.max_turns)
        tokens, spec = size.trajectory_of(experiment), experiment.envs[env_id]
        episodes = attempts * (2 * spec.test_size + validations * spec.val_size)
        evaluations += episodes * (EVALUATION_BYTES * tokens + 2 * frames)
        batches += trajectories_per_iteration(experiment) * (BATCH_BYTES * tokens + frames)
    one, count = checkpoints(experiment, shape)
    return {
        f"batches of {kept} iterations": kept * batches // len(sizes),
        "checkpoints": one * (count + (trainer.select == "best_validation")),
        "evaluations": evaluations,
    }


def iteration_seconds(
    experiment: ExperimentConfig, infra: InfraConfig, shape: ModelShape, sizes: Sizes
) -> float:
    """Seconds of an iteration on this machine's cores, if all turns of every episode are used.

    Multiplications of a second are measured here; an episode's answers are sampled, and its tokens
    go through each network as often as the algorithm says.
    """
    from vagen.service.pool import core_count

    actor, critic = experiment.actor_rollout_ref.actor, experiment.critic
    passes = 1.0 + FORWARDS * actor.ppo_epochs + has_reference(experiment)
    if has_critic(experiment):
        passes += 1.0 + FORWARDS * critic.epochs(warmup=False)
    mean = sum(size.trajectory_of(experiment) for size in sizes.values()) / len(sizes)
    tokens = trajectories_per_iteration(experiment) * mean
    operations = 2.0 * shape.parameters * tokens * passes
    return operations / (operations_per_second() * (infra.threads or core_count()))


def operations_per_second() -> float:
    """Floating-point operations per second of one core, in products such as a small model's."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        a, b = torch.ones(512, 128), torch.ones(128, 512)
        begun, count = time.perf_counter(), 0
        while time.perf_counter() - begun < PROBE_SECONDS:
            torch.mm(a, b)
            count += 1
        return 2.0 * 512 * 128 * 512 * count / (time.perf_counter() - begun)
    finally:
        torch.set_num_threads(threads)
