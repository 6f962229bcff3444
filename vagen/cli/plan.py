"""`vagen plan`: what would run, how long the contexts are, and whether it fits."""

from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vagen.cli.common import load_configs
from vagen.cli.plan_verl import plan_verl
from vagen.cli.tables import DoesNotFitError, bytes_text, table
from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.checks import (
    context_window,
    estimator_of,
    has_critic,
    has_reference,
    trajectories_per_iteration,
)
from vagen.config.judge import JudgeConfig

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from vagen.cli.memory import Memory, ModelShape
    from vagen.cli.sizes import ConversationSize


def plan(options: Namespace) -> None:
    """Prints what would run; refuses what cannot fit."""
    from rich.console import Console

    from vagen.cli.counting import must_estimate
    from vagen.cli.sizes import environments_here, measure, model_directory

    if options.engine:
        options.infra_overrides.append(f"engine={options.engine}")
    experiment, infra = load_configs(options)
    console = Console()
    console.print(steps_table(experiment, infra))
    environments = environments_here(infra)
    with model_directory(experiment, environments) as model:
        sizes = measure(experiment, model, environments)
        console.print(sizes_table(experiment, sizes))
        remarks = notes(experiment, sizes)
        if must_estimate(model):
            remarks.insert(0, f"tokens of text are estimated: {model}'s tokenizer is not here")
        for note in remarks:
            _print_text(console, f"! {note}")
        check_prompts(experiment, sizes)
        parts = plan_verl if infra.engine == "verl" else plan_local
        for part in parts(experiment, infra, model, sizes):
            if isinstance(part, str):
                _print_text(console, part)
            else:
                console.print(part)


def _print_text(console: "Console", text: str) -> None:
    """Prints a text as it is, in lines of any length."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def plan_local(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    model: str,
    sizes: "dict[str, ConversationSize]",
) -> "Iterator[Table]":
    """The table of the local engine's memory; refuses a machine that is too small after it is read.

    Raises:
        DoesNotFitError: With the numbers and what would help.
    """
    from vagen.cli.memory import estimate, memory_limit, read_shape, trained_parameters

    shape = read_shape(model, experiment)
    memory = estimate(experiment, infra, shape, sizes)
    device, limit = _device_memory(infra) or ("RAM", memory_limit())
    yield memory_table(shape, trained_parameters(experiment, shape), memory, device, limit)
    check_memory(memory, device, limit)


def steps_table(experiment: ExperimentConfig, infra: InfraConfig) -> "Table":
    """Which steps run, how often, with which switches."""
    algorithm, manager = experiment.algorithm, experiment.rollout_manager
    actor = experiment.actor_rollout_ref.actor
    trajectories = trajectories_per_iteration(experiment)
    iterations = experiment.trainer.total_training_steps
    updates = -(-trajectories // actor.ppo_mini_batch_size) * actor.ppo_epochs
    warm = experiment.warm_start
    every = experiment.trainer.test_freq
    levels = {
        split: sum(getattr(spec, f"{split}_size") for spec in experiment.envs.values())
        for split in ("train", "val", "test")
    }
    gammas = f"gamma {algorithm.gamma:g}, lambda {algorithm.lam:g}"
    if estimator_of(experiment).needs_turn_end:
        high = algorithm.lam if algorithm.high_level_lam is None else algorithm.high_level_lam
        gammas += f"; per turn {algorithm.high_level_gamma:g}, {high:g}"
    rows = {
        "experiment": f"{experiment.name}, preset {experiment.preset or 'none'}, "
        f"seed {experiment.seed}",
        "environments": ", ".join(
            f"{env_id}: {spec.env_name} {spec.env_config['render_mode']}, "
            f"{spec.env_config['prompt_format']}"
            for env_id, spec in experiment.envs.items()
        ),
        "levels": ", ".join(f"{count:,} {split}" for split, count in levels.items()),
        "model": experiment.actor_rollout_ref.model.path,
        "warm start": f"{warm.steps} steps of {warm.batch_size} expert episodes"
        if warm.steps
        else "none",
        "iterations": f"{iterations} x (rollout, judge, advantage, update), {infra.mode}",
        "rollout": f"{trajectories:,} trajectories "
        f"({experiment.data.train_batch_size} levels x {manager.n_trajectory}), "
        f"up to {manager.max_turns} turns ({_context(experiment)} in the prompt), temperature "
        f"{experiment.actor_rollout_ref.rollout.temperature:g}",
        "judge": judge_text(experiment.judge),
        "advantage": f"{algorithm.adv_estimator}, {gammas}",
        "masks": f"loss mask {_on(manager.use_loss_mask)}, "
        f"advantage mask {_on(manager.use_gae_mask)}, "
        f"turn rewards {_on(manager.use_multi_turn_reward)}",
        "networks": "actor"
        + (", critic" if has_critic(experiment) else "")
        + (", reference" if has_reference(experiment) else ""),
        "update": f"{updates} optimizer steps of {actor.ppo_mini_batch_size} trajectories, "
        f"learning rate {actor.optim.lr:g}",
        "evaluations": f"{levels['test']} test levels before and after"
        + (f", {levels['val']} validation levels every {every} iterations" if every else ""),
        "results": infra.output_dir,
    }
    return table("what would run", rows)


def sizes_table(experiment: ExperimentConfig, sizes: "dict[str, ConversationSize]") -> "Table":
    """Tokens of prompts, turns and trajectories against their budgets."""
    data, turns = experiment.data, experiment.rollout_manager.max_turns
    window = context_window(experiment)
    rows = {}
    for env_id, size in sizes.items():
        rows[f"{env_id}: prompt"] = f"{size.prompt:,} of {data.max_prompt_length:,} tokens"
        rows[f"{env_id}: response"] = (
            f"{size.response:,} (an expert's) of {data.max_response_length:,} tokens"
        )
        rows[f"{env_id}: observation"] = (
            f"{size.observation:,} tokens, {size.image_tokens:,} of them image"
        )
        contexts = size.rows(turns, window)
        rows[f"{env_id}: trajectory"] = (
            f"{max(contexts):,} of {data.max_trajectory_length:,} tokens in {turns} turns"
            if window is None
            else f"{len(contexts)} contexts of up to {max(contexts):,} of "
            f"{data.max_trajectory_length:,} tokens in {turns} turns"
        )
    mean = sum(sum(size.rows(turns, window)) for size in sizes.values()) / len(sizes)
    total = trajectories_per_iteration(experiment) * mean
    rows["an iteration"] = f"{total:,.0f} tokens if all turns are used"
    return table("sizes", rows)


def memory_table(
    shape: "ModelShape", trained: tuple[int, int], memory: "Memory", device: str, limit: int
) -> "Table":
    """The estimate of memory against what there is."""
    actor, critic = trained
    rows = {
        "parameters": f"{shape.parameters:,}",
        "trained": f"actor {actor:,}" + (f", critic {critic:,}" if critic else ""),
        "weights": bytes_text(memory.weights),
        "Adam": bytes_text(memory.adam),
        "gradients": bytes_text(memory.gradients),
        "activations": f"{bytes_text(memory.activations)} (estimate)",
        "key/value cache": bytes_text(memory.cache),
        "peak": f"{bytes_text(memory.peak)} of {bytes_text(limit)} {device}",
    }
    return table("memory of the local engine", rows)


def notes(experiment: ExperimentConfig, sizes: "dict[str, ConversationSize]") -> list[str]:
    """What will run but may not be meant."""
    found = []
    data, window = experiment.data, context_window(experiment)
    turns = experiment.rollout_manager.max_turns
    for env_id, size in sizes.items():
        length = max(size.rows(turns, window))
        if length > data.max_trajectory_length:
            kept = turns if window is None else window
            found.append(
                f"{env_id}: {kept} turns take {length:,} tokens; episodes will be cut at "
                f"data.max_trajectory_length = {data.max_trajectory_length:,}"
            )
        if window is not None and size.later_prompt > data.max_prompt_length:
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
    return found


def check_prompts(experiment: ExperimentConfig, sizes: "dict[str, ConversationSize]") -> None:
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


def check_memory(memory: "Memory", device: str, limit: int) -> None:
    """Refuses a peak over the limit.

    Raises:
        DoesNotFitError: With the numbers and what would help.
    """
    if memory.peak > limit:
        when = "update" if memory.update >= memory.rollout else "rollout"
        if memory.process + memory.weights + memory.adam > limit:
            remedy = "take a smaller model or a larger machine"
        elif when == "update":
            remedy = "lower `actor_rollout_ref.actor.ppo_max_token_len`"
        else:
            remedy = "lower `actor_rollout_ref.rollout.max_concurrency`"
        raise DoesNotFitError(
            f"this needs about {bytes_text(memory.peak)} in the {when}, and there is "
            f"{bytes_text(limit)} of {device}: {remedy}"
        )


def _device_memory(infra: InfraConfig) -> tuple[str, int] | None:
    """Name and bytes of the accelerator, or None on a CPU."""
    import torch

    if infra.device == "cpu" or not torch.cuda.is_available():
        return None
    device = torch.device("cuda" if infra.device == "auto" else infra.device)
    properties = torch.cuda.get_device_properties(device)
    return properties.name, properties.total_memory


def _context(experiment: ExperimentConfig) -> str:
    window = context_window(experiment)
    if window is None:
        return "all"
    return "only the present one" if window == 1 else f"the last {window}"


def judge_text(judge: JudgeConfig) -> str:
    """Which judge scores what, asking whom, on one line."""
    if not judge.use_state_reward:
        return "no state reward"
    parts = [
        judge.type,
        f"observation {judge.observation_weight:g}",
        f"prediction {judge.prediction_weight:g}",
    ]
    if judge.type != "rule":
        parts.append(f"asks {judge.llm.model} at {judge.llm.base_url}")
    if judge.sampling_fraction < 1:
        parts.append(f"{judge.sampling_fraction:.0%} of the turns")
    schedule = judge.schedule
    if schedule.type != "constant":
        parts.append(f"weights fall to {schedule.floor:g} of that ({schedule.type})")
    if schedule.max_return_share is not None:
        parts.append(f"at most {schedule.max_return_share:g} of the returns' deviation")
    if judge.second.fraction > 0:
        parts.append(f"second judge ({judge.second.type}) on {judge.second.fraction:.0%} of them")
    return ", ".join(parts)


def _on(switch: bool) -> str:
    return "on" if switch else "off"
