"""A plan, part by part: what would run, how long its contexts are, whether it fits."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.table import Table

from vagen.config import ConfigError, ExperimentConfig, InfraConfig
from vagen.config.schema import context_window
from vagen.engines.verl.env_vars import is_installed
from vagen.engines.verl.mapping import is_cpu, token_budget
from vagen.experiment.checks import check_thoughts, estimator_of
from vagen.experiment.hints import hints
from vagen.plan.memory import Need, keeps_activations, needs
from vagen.plan.shape import ModelShape, read_shape
from vagen.plan.sizes import (
    ConversationSize,
    environments_here,
    learns_tags,
    measure,
    model_directory,
    must_estimate,
    reserved_text,
)
from vagen.plan.tables import bytes_text, needs_table, settings_text, sizes_table, steps_table
from vagen.rollout.reach import out_of_reach, weak_experts
from vagen.service import environments_of
from vagen.storage import StorageError

Parts = Iterator[Table | str]
Changes = dict[str, bool | int | float]
"""Values by option, such as `infra.verl.nnodes`."""

LORA_RANK = 64
"""RAGEN's."""
SHARES = (0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""Shares of a GPU for vLLM that are tried: the one with the most cache that fits is named."""


class DoesNotFitError(ConfigError):
    """The experiment needs more memory or disk than there is."""


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
        shape = read_shape(model, experiment)
        if infra.engine == "verl":
            if infra.verl.extra and is_installed():
                from vagen.engines.verl.config import pass_through, verl_defaults

                pass_through(verl_defaults(), infra.verl.extra)
            infra = _resolved(experiment, infra, shape, sizes)
            yield settings_text(experiment, infra)
        yield needs_table(experiment, infra, shape, sizes)

        def needs_of(other: ExperimentConfig, layout: InfraConfig) -> list[Need]:
            ranks = (c.actor_rollout_ref.model.lora_rank for c in (experiment, other))
            same = len(set(ranks)) == 1
            adapted = shape if same else read_shape(model, other)
            return needs(other, layout, adapted, sizes)

        check_needs(experiment, infra, needs_of)


def resolve_defaults(experiment: ExperimentConfig, infra: InfraConfig) -> InfraConfig:
    """The infra with what is left to the plan: `infra.verl.gradient_checkpointing: auto`."""
    if infra.engine != "verl" or infra.verl.gradient_checkpointing != "auto" or is_cpu(infra):
        return infra
    environments = environments_here(infra)
    with model_directory(experiment, environments) as model:
        sizes = measure(experiment, model, environments)
        return _resolved(experiment, infra, read_shape(model, experiment), sizes)


def _resolved(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    shape: ModelShape,
    sizes: dict[str, ConversationSize],
) -> InfraConfig:
    """`auto` replaced: activations are computed again unless a GPU can keep all of them."""
    if infra.verl.gradient_checkpointing != "auto" or is_cpu(infra):
        return infra
    keeps = keeps_activations(experiment, infra, shape, sizes)
    return _with(infra, "verl.gradient_checkpointing", not keeps)


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
        budget = experiment.rollout_manager.compact_budget
        two = size.prompt + size.observation + 2 * size.response
        if budget is not None and two >= budget:
            found.append(
                f"{env_id}: two turns take {two:,} tokens; at rollout_manager.compact_budget = "
                f"{budget:,} a summary will follow every turn"
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
    """Refuses prompts over their budget, and thoughts that the experiment cannot follow.

    Raises:
        DoesNotFitError: With the numbers and what would help.
        ConfigError: See `check_thoughts`.
    """
    most = experiment.data.max_prompt_length
    for env_id, size in sizes.items():
        if size.prompt > most:
            raise DoesNotFitError(
                f"the first prompt of {env_id} takes {size.prompt:,} tokens, "
                f"`data.max_prompt_length` is {most:,}: raise it, or use a shorter "
                "`env_config.prompt_detail`"
            )
        check_thoughts(experiment, size.thoughts)


def check_needs(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    needs_of: Callable[[ExperimentConfig, InfraConfig], list[Need]],
) -> None:
    """Rejects what needs more than there is.

    Raises:
        DoesNotFitError: With the numbers, and which options would make it fit.
    """

    def fits(changes: Changes) -> bool:
        other, layout = experiment, infra
        for option, value in changes.items():
            if option.startswith("infra."):
                layout = _with(layout, option.removeprefix("infra."), value)
            else:
                other = _with(other, option, value)
        return all(need.is_met for need in needs_of(other, layout))

    for need in needs_of(experiment, infra):
        if need.limit is not None and not need.is_met:
            advice = remedies(experiment, infra, fits)
            raise DoesNotFitError(
                f"{need.what} needs about {bytes_text(need.total)} and has "
                f"{bytes_text(need.limit)} ({need.source}); "
                + (f"it would fit with {', or '.join(advice)}" if advice else "")
                + ("" if advice else "take a smaller model or larger machines")
            )


def remedies(
    experiment: ExperimentConfig, infra: InfraConfig, fits: Callable[[Changes], bool]
) -> list[str]:
    """Overrides that make it fit.

    Returns:
        Of each option the mildest value that is enough alone, or what costs only time taken
        together if nothing is; then adapters, and more machines.
    """
    layout, rollout = infra.verl, experiment.actor_rollout_ref.rollout
    least, budgets = experiment.data.max_trajectory_length, []
    budget = token_budget(experiment, infra) // 2
    while budget > least:
        budgets.append(budget)
        budget //= 2
    tokens = "infra.verl.max_token_len_per_gpu"
    if infra.engine == "local":
        tokens = "actor_rollout_ref.actor.ppo_max_token_len"
    share = "infra.verl.gpu_memory_utilization"
    fewer = [rollout.max_concurrency >> shift for shift in range(1, 9)]
    parallel = [n for n in (2, 4, 8) if n > layout.tensor_model_parallel_size]
    alone = {
        "infra.verl.gradient_checkpointing": [True],
        "infra.verl.optimizer_offload": [not layout.optimizer_offload],
        "infra.verl.param_offload": [not layout.param_offload],
        tokens: [*budgets, least],
        "actor_rollout_ref.rollout.max_concurrency": [n for n in fewer if n],
        share: SHARES,
        "infra.verl.tensor_model_parallel_size": [
            n for n in parallel if layout.server_gpus_per_node % n == 0
        ],
        "infra.verl.agent_workers": [n for n in (8, 4, 2, 1) if n < layout.agent_workers],
        "trainer.guard.enable": [False],
    }
    cheap = {
        "optimizer_offload": True,
        "param_offload": True,
        "gradient_checkpointing": True,
        "max_token_len_per_gpu": least,
    }
    saving: Changes = {
        f"infra.verl.{n}": value for n, value in cheap.items() if getattr(layout, n) != value
    }
    together: list[Changes] = [
        {"infra.verl.optimizer_offload": False, "infra.verl.param_offload": False},
        saving,
        *({**saving, share: value} for value in SHARES),
    ]
    machines = {
        "actor_rollout_ref.model.lora_rank": [LORA_RANK],
        "infra.verl.n_gpus_per_node": [n for n in (2, 4, 8) if n > layout.n_gpus_per_node],
        "infra.verl.nnodes": [
            n for n in (2, 4, 8) if n > layout.nnodes and layout.rollout_gpus % n == 0
        ],
    }

    def enough(options: dict[str, Any]) -> list[Changes]:
        tried = ([{name: value} for value in values] for name, values in options.items())
        found = (next(filter(fits, changes), None) for changes in tried)
        return [changes for changes in found if changes]

    found = enough(alone) or list(filter(fits, together))[:1]
    return [
        " ".join(f"{name}={str(value).lower()}" for name, value in changes.items())
        for changes in [*found, *enough(machines)]
    ]


def _with(config: Any, option: str, value: Any) -> Any:
    """A configuration with another value of an option."""
    name, _, rest = option.partition(".")
    inner = _with(getattr(config, name), rest, value) if rest else value
    return config.model_copy(update={name: inner})
