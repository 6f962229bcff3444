"""`vagen plan` for the verl engine: its configuration, memory of GPUs and nodes, what would fit."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vagen.cli.memory import GIB, read_shape, trained_parameters
from vagen.cli.memory_verl import (
    GpuMemory,
    HostMemory,
    Throughput,
    fits,
    gpu_memory,
    host_memory,
    throughput,
)
from vagen.cli.remedies import remedies
from vagen.cli.tables import DoesNotFitError, bytes_text, table
from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.checks_infra import check_verl
from vagen.engines.verl.mapping import is_cpu, ranks, servers, settings, token_budget

if TYPE_CHECKING:
    from rich.table import Table

    from vagen.cli.memory import ModelShape
    from vagen.cli.sizes import ConversationSize

HIDDEN = "actor_rollout_ref.rollout.custom"
"""The whole experiment in one option: nothing to read."""


def plan_verl(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    model: str,
    sizes: "dict[str, ConversationSize]",
) -> "Iterator[Table | str]":
    """Parts of the plan; refuses a GPU that is too small after they are read.

    Raises:
        DoesNotFitError: With what would fit.
        ConfigError: verl cannot run the combination.
    """
    cpu = is_cpu(infra)
    check_verl(experiment, infra, cpu=cpu)
    yield settings_text(experiment, infra, cpu=cpu)
    shape = read_shape(model, experiment)
    memory = gpu_memory(experiment, infra, shape, sizes)
    rates = throughput(experiment, infra, shape, sizes, memory)
    if not cpu:
        yield gpu_table(experiment, infra, shape, memory)
    yield host_table(infra, host_memory(experiment, infra, shape, sizes, memory), cpu=cpu)
    yield throughput_table(experiment, infra, rates, cpu=cpu)
    if not cpu:
        check_gpu(experiment, infra, model, sizes)


def settings_text(experiment: ExperimentConfig, infra: InfraConfig, *, cpu: bool) -> str:
    """What we set in verl's configuration, a line each."""
    path = experiment.actor_rollout_ref.model.path
    laid = settings(experiment, infra, path, cpu=cpu)
    lines = [f" {setting.key}: {setting.value}" for setting in laid if setting.key != HIDDEN]
    return "\n".join(["what verl is told (the rest is its default)", *lines])


def gpu_table(
    experiment: ExperimentConfig, infra: InfraConfig, shape: "ModelShape", memory: GpuMemory
) -> "Table":
    """One GPU's memory against what it has."""
    actor, critic = trained_parameters(experiment, shape)
    networks = {"actor": memory.actor, "critic": memory.critic}
    rows = {
        "parameters": f"{shape.parameters:,}",
        "trained": f"actor {actor:,}" + (f", critic {critic:,}" if critic else ""),
    }
    for name, network in networks.items():
        if network is not None:
            rows[name] = (
                f"weights {bytes_text(network.weights)}, gradients "
                f"{bytes_text(network.gradients)}, Adam {bytes_text(network.adam)}; "
                f"{bytes_text(network.resting)} stay in rollouts"
            )
    rows |= {
        "gathered layers": bytes_text(memory.gathered),
        "activations": f"{bytes_text(memory.activations)} (estimate)",
        "logits": f"{bytes_text(memory.logits)} (estimate)",
        "rollout weights": bytes_text(memory.vllm_weights),
        "key/value cache": bytes_text(max(memory.cache, 0)),
        "peak": f"rollout {bytes_text(memory.rollout)}, update {bytes_text(memory.update)} of "
        f"{infra.verl.gpu_memory_gib:g} GiB",
    }
    return table(f"memory of each of {ranks(infra)} GPUs", rows)


def host_table(infra: InfraConfig, memory: HostMemory, *, cpu: bool) -> "Table":
    """One node's memory."""
    rows = {
        "processes": bytes_text(memory.processes),
        "reference": bytes_text(memory.reference),
        "offloaded": bytes_text(memory.offloaded),
        "frames": bytes_text(memory.episodes),
        "while loading": bytes_text(memory.loading),
        "peak": f"{bytes_text(memory.peak)} (estimate)"
        + (", and what a GPU would hold" if cpu else ""),
    }
    return table(f"host memory of each of {infra.verl.nnodes} nodes", rows)


def throughput_table(
    experiment: ExperimentConfig, infra: InfraConfig, rates: Throughput, *, cpu: bool
) -> "Table":
    """Tokens per step and episodes side by side."""
    rows = {
        "an iteration": f"{rates.tokens:,} tokens if all turns are used, "
        f"{rates.optimizer_steps} optimizer steps",
        "a step": f"{rates.tokens_per_rank:,} tokens per rank in {rates.micro_batches} micro "
        f"batches of up to {token_budget(experiment, infra):,}",
        "servers": f"{servers(infra)} of {infra.verl.tensor_model_parallel_size} ranks",
    }
    if not cpu:
        wanted = experiment.actor_rollout_ref.rollout.max_concurrency
        rows["episodes side by side"] = (
            f"{min(wanted, rates.concurrency)}: {rates.cache_tokens:,} tokens of cache hold "
            f"{rates.concurrency} at full length, `max_concurrency` allows {wanted}"
        )
    return table("tokens", rows)


def check_gpu(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    model: str,
    sizes: "dict[str, ConversationSize]",
) -> None:
    """Refuses what a GPU cannot hold.

    Raises:
        DoesNotFitError: With the numbers, and which options would make it fit.
    """
    shapes: dict[int, ModelShape] = {}

    def estimate(config: ExperimentConfig, layout: InfraConfig) -> tuple[GpuMemory, bool]:
        rank = config.actor_rollout_ref.model.lora_rank
        if rank not in shapes:
            shapes[rank] = read_shape(model, config)
        memory = gpu_memory(config, layout, shapes[rank], sizes)
        rates = throughput(config, layout, shapes[rank], sizes, memory)
        return memory, fits(layout, memory, rates, config.data.max_trajectory_length)

    memory, enough = estimate(experiment, infra)
    if enough:
        return
    limit = infra.verl.gpu_memory_gib
    if memory.peak > limit * GIB:
        when = "update" if memory.update >= memory.rollout else "rollout"
        what = f"a GPU needs about {bytes_text(memory.peak)} in the {when} and has {limit:g} GiB"
    else:
        what = (
            f"vLLM's share of {bytes_text(memory.vllm)} leaves {bytes_text(max(memory.cache, 0))} "
            "for the key/value cache, too little for one sequence of "
            f"data.max_trajectory_length = {experiment.data.max_trajectory_length:,} tokens"
        )
    found = remedies(experiment, infra, lambda *changed: estimate(*changed)[1])
    advice = f"it would fit with {', or '.join(found)}" if found else "take a smaller model"
    raise DoesNotFitError(f"{what}; {advice}")
