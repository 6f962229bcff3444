"""Which options would make an experiment fit the GPUs."""

from collections.abc import Callable, Iterator, Sequence

from vagen.config import ExperimentConfig, InfraConfig
from vagen.engines.verl.mapping import token_budget

Value = bool | int | float
Options = Iterator[tuple[str, Sequence[Value]]]
Fits = Callable[[ExperimentConfig, InfraConfig], bool]

LORA_RANK = 64
"""RAGEN's."""
SHARES = (0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""Shares of a GPU for vLLM that are tried: the one with the most cache that fits is named."""


def remedies(experiment: ExperimentConfig, infra: InfraConfig, fits: Fits) -> list[str]:
    """Overrides that make it fit.

    Returns:
        Of each option the mildest value that is enough alone, or what costs only time taken
        together if nothing is; then adapters, and more GPUs.
    """
    found = _enough_alone(experiment, infra, fits, _options(experiment, infra))
    found = found or _together(experiment, infra, fits)
    found += _adapters(experiment, infra, fits)
    return found + _enough_alone(experiment, infra, fits, _machines(infra))


def host_remedies(experiment: ExperimentConfig, infra: InfraConfig, fits: Fits) -> list[str]:
    """Overrides with which a node's memory is enough."""
    layout = infra.verl
    offloads = {n: False for n in ("optimizer_offload", "param_offload") if getattr(layout, n)}
    options = [(name, [value]) for name, value in offloads.items()]
    fewer = [n for n in (8, 4, 2, 1) if n < layout.agent_workers]
    options += [("agent_workers", fewer), *list(_machines(infra))[1:]]
    found = _enough_alone(experiment, infra, fits, iter(options))
    if not found and len(offloads) > 1 and fits(experiment, _laid_out(infra, {**offloads})):
        found.append(" ".join(_override(name, value) for name, value in offloads.items()))
    return found + _adapters(experiment, infra, fits)


def disk_remedies(experiment: ExperimentConfig, infra: InfraConfig, fits: Fits) -> list[str]:
    """Overrides with which a disk holds the checkpoints."""
    found = []
    trainer = experiment.trainer
    if trainer.guard.enable:
        guard = trainer.guard.model_copy(update={"enable": False})
        without = trainer.model_copy(update={"guard": guard})
        if fits(experiment.model_copy(update={"trainer": without}), infra):
            found.append("trainer.guard.enable=false")
    return found + _adapters(experiment, infra, fits)


def _adapters(experiment: ExperimentConfig, infra: InfraConfig, fits: Fits) -> list[str]:
    """Adapters, if they would be enough."""
    has = experiment.actor_rollout_ref.model.lora_rank
    enough = not has and fits(_adapted(experiment), infra)
    return [f"actor_rollout_ref.model.lora_rank={LORA_RANK}"] if enough else []


def _enough_alone(
    experiment: ExperimentConfig, infra: InfraConfig, fits: Fits, options: Options
) -> list[str]:
    """The first value of each option with which it fits."""
    found = []
    for name, values in options:
        enough = (value for value in values if fits(experiment, _laid_out(infra, {name: value})))
        value = next(enough, None)
        if value is not None:
            found.append(_override(name, value))
    return found


def _options(experiment: ExperimentConfig, infra: InfraConfig) -> Options:
    """Options and their values beyond the present ones, mildest first."""
    layout, least = infra.verl, experiment.data.max_trajectory_length
    for name in ("gradient_checkpointing", "optimizer_offload", "param_offload"):
        if not getattr(layout, name):
            yield name, [True]
    budget, budgets = token_budget(experiment, infra) // 2, []
    while budget > least:
        budgets.append(budget)
        budget //= 2
    yield "max_token_len_per_gpu", [*budgets, least]
    if layout.rollout == "vllm":
        yield "gpu_memory_utilization", SHARES
        per_node, present = layout.server_gpus_per_node, layout.tensor_model_parallel_size
        parallel = [n for n in (2, 4, 8) if n > present and per_node % n == 0]
        yield "tensor_model_parallel_size", parallel


def _machines(infra: InfraConfig) -> Options:
    """More GPUs than now."""
    layout = infra.verl
    yield "n_gpus_per_node", [n for n in (2, 4, 8) if n > layout.n_gpus_per_node]
    apart = layout.rollout_gpus
    yield "nnodes", [n for n in (2, 4, 8) if n > layout.nnodes and apart % n == 0]


def _together(experiment: ExperimentConfig, infra: InfraConfig, fits: Fits) -> list[str]:
    """Everything that saves memory for time, as one remedy; nothing if that is not enough."""
    values: dict[str, Value] = {
        "optimizer_offload": True,
        "param_offload": True,
        "gradient_checkpointing": True,
        "max_token_len_per_gpu": experiment.data.max_trajectory_length,
    }
    for share in SHARES if infra.verl.rollout == "vllm" else ():
        if fits(experiment, _laid_out(infra, {**values, "gpu_memory_utilization": share})):
            values["gpu_memory_utilization"] = share
            break
    if not fits(experiment, _laid_out(infra, values)):
        return []
    changed = {n: value for n, value in values.items() if getattr(infra.verl, n) != value}
    return [" ".join(_override(name, value) for name, value in changed.items())]


def _laid_out(infra: InfraConfig, values: dict[str, Value]) -> InfraConfig:
    return infra.model_copy(update={"verl": infra.verl.model_copy(update=values)})


def _adapted(experiment: ExperimentConfig) -> ExperimentConfig:
    policy = experiment.actor_rollout_ref
    model = policy.model.model_copy(update={"lora_rank": LORA_RANK})
    return experiment.model_copy(
        update={"actor_rollout_ref": policy.model_copy(update={"model": model})}
    )


def _override(name: str, value: Value) -> str:
    return f"infra.verl.{name}={str(value).lower()}"
