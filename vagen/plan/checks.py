"""Checks a plan: warns of likely mistakes, rejects what cannot fit."""

import math
import tempfile
from pathlib import Path

from vagen.config import ConfigError, ExperimentConfig, InfraConfig
from vagen.config.checks import context_window, estimator_of
from vagen.config.hints import hints
from vagen.engines.verl.env_vars import is_installed
from vagen.plan.gpu import GpuMemory, gpu_memory
from vagen.plan.local import MemoryEstimate
from vagen.plan.remedies import disk_remedies, host_remedies, remedies
from vagen.plan.shape import GIB, ModelShape, read_shape
from vagen.plan.sizes import ConversationSize, learns_tags, reserved_text
from vagen.plan.tables import bytes_text
from vagen.plan.verl import HostMemory, checkpoints, fits, host_memory, throughput
from vagen.storage import StorageError


class DoesNotFitError(ConfigError):
    """The experiment needs more memory or disk than there is."""


def check_output_dir(infra: InfraConfig) -> None:
    """Checks that the output folder can be created and written.

    Raises:
        StorageError: With the reason.
    """
    folder = Path(infra.output_dir)
    while not folder.exists():
        folder = folder.parent
    try:
        tempfile.TemporaryDirectory(dir=folder).cleanup()
    except OSError as error:
        raise StorageError(
            f"infra.output_dir={infra.output_dir} cannot be written ({error.strerror}): choose "
            "another folder"
        ) from error


def notes(experiment: ExperimentConfig, sizes: dict[str, ConversationSize]) -> list[str]:
    """Warnings about likely mistakes."""
    found = []
    data, window = experiment.data, context_window(experiment)
    turns = experiment.rollout_manager.max_turns
    gated = experiment.rollout_manager.context == "gate"
    for env_id, size in sizes.items():
        length = max(size.rows_of(experiment))
        if length > data.max_trajectory_length:
            kept = turns if window is None or gated else window
            found.append(
                f"{env_id}: {kept} turns take {length:,} tokens; episodes will be cut at "
                f"data.max_trajectory_length = {data.max_trajectory_length:,}"
            )
        if window is not None and not gated and size.later_prompt > data.max_prompt_length:
            found.append(
                f"{env_id}: the system prompt and a later observation take {size.later_prompt:,} "
                "tokens; episodes will be cut before a context that begins so, at "
                f"data.max_prompt_length = {data.max_prompt_length:,}"
            )
        if size.response > data.max_response_length:
            found.append(
                f"{env_id}: an expert's response takes {size.response} tokens; responses will be "
                f"cut at data.max_response_length = {data.max_response_length}"
            )
        if size.resized:
            found.append(f"{env_id}: frames of {size.resized}")
        if size.reserved and not learns_tags(experiment):
            found.append(f"{env_id}: {reserved_text(env_id, size.reserved)}")
    spec = estimator_of(experiment)
    if not spec.reads_token_rewards and experiment.algorithm.kl_ctrl.kl_coef > 0:
        found.append(
            f"{experiment.algorithm.adv_estimator} reads rewards at the ends of turns only: the KL "
            "penalty on other tokens has no effect"
        )
    if spec.value_mask not in (None, "turn_end") and experiment.critic.use_reward_mask:
        found.append(
            "critic.use_reward_mask trains the critic at the ends of turns only, and "
            f"{experiment.algorithm.adv_estimator} reads its values on every token"
        )
    return [*found, *hints(experiment)]


def check_prompts(experiment: ExperimentConfig, sizes: dict[str, ConversationSize]) -> None:
    """Refuses prompts over their budget.

    Raises:
        DoesNotFitError: With the numbers and what would help.
    """
    most = experiment.data.max_prompt_length
    for env_id, size in sizes.items():
        if size.prompt > most:
            raise DoesNotFitError(
                f"the first prompt of {env_id} takes {size.prompt:,} tokens, "
                f"`data.max_prompt_length` is {most:,}: raise it, or use a shorter "
                "`env_config.prompt_detail`"
            )


def check_extra(infra: InfraConfig) -> None:
    """Rejects `infra.verl.extra` options that an installed verl does not have.

    Raises:
        ConfigError: With the nearest name.
    """
    if infra.verl.extra and is_installed():
        from vagen.engines.verl.config import pass_through, verl_defaults

        pass_through(verl_defaults(), infra.verl.extra)


def check_memory(memory: MemoryEstimate, device: str, limit: int) -> None:
    """Rejects a memory peak over the limit.

    Raises:
        DoesNotFitError: With the numbers and what would help.
    """
    if memory.peak > limit:
        when = "update" if memory.update >= memory.rollout else "rollout"
        if memory.resting > limit:
            remedy = "take a smaller model or a larger machine"
        elif when == "update":
            remedy = "lower `actor_rollout_ref.actor.ppo_max_token_len`"
        else:
            remedy = "lower `actor_rollout_ref.rollout.max_concurrency`"
        raise DoesNotFitError(
            f"this needs about {bytes_text(memory.peak)}, most of it in the {when}, and there is "
            f"{bytes_text(limit)} of {device}: {remedy}"
        )


def check_host(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    model: str,
    sizes: dict[str, ConversationSize],
) -> None:
    """Rejects what a node's memory cannot hold, if that is known.

    Raises:
        DoesNotFitError: With the numbers, and which options would make it fit.
    """
    limit = infra.verl.host_memory_gib
    shapes = Shapes(model)

    def estimate(config: ExperimentConfig, layout: InfraConfig) -> HostMemory:
        shape = shapes.of(config)
        memory = gpu_memory(config, layout, shape, sizes)
        return host_memory(config, layout, shape, sizes, memory)

    needed = estimate(experiment, infra).peak
    if limit is None or needed <= limit * GIB:
        return
    found = host_remedies(
        experiment, infra, lambda other, layout: estimate(other, layout).peak <= limit * GIB
    )
    advice = f"it would fit with {', or '.join(found)}" if found else "take larger nodes"
    raise DoesNotFitError(
        f"a node needs about {bytes_text(needed)} of memory and has {limit:g} GiB "
        f"(infra.verl.host_memory_gib); {advice}"
    )


def check_scratch(experiment: ExperimentConfig, infra: InfraConfig, model: str) -> None:
    """Refuses checkpoints that the disk cannot hold, if its size is known.

    Raises:
        DoesNotFitError: With the numbers, and which options would make it fit.
    """
    limit = infra.verl.scratch_gib
    shapes = Shapes(model)

    def enough(config: ExperimentConfig, _: InfraConfig) -> bool:
        return limit is None or checkpoints(config, shapes.of(config)).peak <= limit * GIB

    if enough(experiment, infra):
        return
    there = checkpoints(experiment, shapes.of(experiment))
    found = [f"infra.verl.scratch_gib={math.ceil(there.peak / GIB)}, on a disk of that size"]
    raise DoesNotFitError(
        f"{there.count} checkpoints of {bytes_text(there.one)} each take "
        f"{bytes_text(there.peak)} and there is {limit:g} GiB (infra.verl.scratch_gib); it would "
        f"fit with {', or '.join(found + disk_remedies(experiment, infra, enough))}"
    )


class Shapes:
    """The shapes of a model, one for each way of training it."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._found: dict[int, ModelShape] = {}

    def of(self, experiment: ExperimentConfig) -> ModelShape:
        """Shape of the model with the adapters of an experiment."""
        rank = experiment.actor_rollout_ref.model.lora_rank
        if rank not in self._found:
            self._found[rank] = read_shape(self.model, experiment)
        return self._found[rank]


def check_gpu(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    model: str,
    sizes: dict[str, ConversationSize],
) -> None:
    """Rejects what a GPU cannot hold.

    Raises:
        DoesNotFitError: With the numbers, and which options would make it fit.
    """
    shapes = Shapes(model)

    def estimate(config: ExperimentConfig, layout: InfraConfig) -> tuple[GpuMemory, bool]:
        shape = shapes.of(config)
        memory = gpu_memory(config, layout, shape, sizes)
        rates = throughput(config, layout, shape, sizes, memory)
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
    found = remedies(experiment, infra, lambda other, layout: estimate(other, layout)[1])
    advice = f"it would fit with {', or '.join(found)}" if found else "take a smaller model"
    raise DoesNotFitError(f"{what}; {advice}")
