"""A plan, part by part: what would run, how long its contexts are, whether it fits."""

from collections.abc import Iterator

from rich.table import Table

from vagen.config import ExperimentConfig, InfraConfig
from vagen.engines.verl.mapping import is_cpu
from vagen.plan import local, verl
from vagen.plan.checks import (
    check_extra,
    check_gpu,
    check_host,
    check_memory,
    check_prompts,
    check_scratch,
    notes,
)
from vagen.plan.counting import must_estimate
from vagen.plan.gpu import gpu_memory
from vagen.plan.shape import read_shape, trained_parameters
from vagen.plan.sizes import ConversationSize, environments_here, measure, model_directory
from vagen.plan.spending import disk, iteration_seconds
from vagen.plan.tables import (
    checkpoint_table,
    gpu_table,
    host_table,
    memory_table,
    settings_text,
    sizes_table,
    spending_table,
    steps_table,
    throughput_table,
)
from vagen.rollout.reach import out_of_reach, weak_experts
from vagen.service import environments_of

Parts = Iterator[Table | str]


def plan_parts(experiment: ExperimentConfig, infra: InfraConfig) -> Parts:
    """Parts of a plan in order; an error comes after the parts that explain it.

    Raises:
        DoesNotFitError: With the numbers and what would help.
        ConfigError: The engine cannot run the combination.
    """
    yield steps_table(experiment, infra)
    environments = environments_here(infra)
    with model_directory(experiment, environments) as model:
        sizes = measure(experiment, model, environments)
        yield sizes_table(experiment, sizes)
        if must_estimate(model):
            yield f"! tokens of text are estimated: {model}'s tokenizer is not here"
        for note in notes(experiment, sizes):
            yield f"! {note}"
        for check in (out_of_reach, weak_experts):
            for text in check(experiment, environments_of(environments)):
                yield f"! {text}"
        check_prompts(experiment, sizes)
        memory_parts = _verl if infra.engine == "verl" else _local
        yield from memory_parts(experiment, infra, model, sizes)


def _local(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    model: str,
    sizes: dict[str, ConversationSize],
) -> Parts:
    """The local engine's memory."""
    shape = read_shape(model, experiment)
    memory = local.estimate(experiment, infra, shape, sizes)
    device, limit = local.device_memory(infra)
    yield memory_table(shape, trained_parameters(experiment, shape), memory, device, limit)
    seconds = iteration_seconds(experiment, infra, shape, sizes) if device == "RAM" else None
    yield spending_table(experiment, disk(experiment, shape, sizes), seconds)
    check_memory(memory, device, limit)


def _verl(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    model: str,
    sizes: dict[str, ConversationSize],
) -> Parts:
    """The verl engine's configuration, memory of GPUs and nodes, and tokens per step."""
    cpu = is_cpu(infra)
    check_extra(infra)
    shape = read_shape(model, experiment)
    if not cpu:
        infra = verl.decided(experiment, infra, shape, sizes)
    yield settings_text(experiment, infra, cpu=cpu)
    memory = gpu_memory(experiment, infra, shape, sizes)
    rates = verl.throughput(experiment, infra, shape, sizes, memory)
    if not cpu:
        yield gpu_table(experiment, infra, shape, memory)
    yield host_table(infra, verl.host_memory(experiment, infra, shape, sizes, memory), cpu=cpu)
    yield checkpoint_table(infra, verl.checkpoints(experiment, shape))
    yield spending_table(experiment, disk(experiment, shape, sizes), None)
    yield throughput_table(experiment, infra, rates, cpu=cpu)
    if not cpu:
        check_gpu(experiment, infra, model, sizes)
    check_host(experiment, infra, model, sizes)
    check_scratch(experiment, infra, model)


def resolve_defaults(experiment: ExperimentConfig, infra: InfraConfig) -> InfraConfig:
    """The infra with what is left to the plan: `infra.verl.gradient_checkpointing: auto`."""
    if infra.engine != "verl" or infra.verl.gradient_checkpointing != "auto" or is_cpu(infra):
        return infra
    environments = environments_here(infra)
    with model_directory(experiment, environments) as model:
        sizes = measure(experiment, model, environments)
        return verl.decided(experiment, infra, read_shape(model, experiment), sizes)
