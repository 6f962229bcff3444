"""The plan as tables: steps, sizes of conversations, and what a run needs."""

from rich.table import Table
from rich.text import Text

from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.judge_options import JudgeConfig
from vagen.config.schema import context_window, has_reference, trajectories_per_iteration
from vagen.engines.verl.mapping import EXTRA, is_cpu, ranks, servers, settings, token_budget
from vagen.experiment.checks import estimator_of, has_critic
from vagen.plan.memory import (
    Bytes,
    cache_bytes,
    disk,
    gpu_memory,
    iteration_seconds,
    needs,
    step_tokens,
)
from vagen.plan.shape import ModelShape, trained_parameters
from vagen.plan.sizes import ConversationSize, longest_context
from vagen.rollout.demonstrations import read_demonstrations


def steps_table(experiment: ExperimentConfig, infra: InfraConfig) -> Table:
    """Which steps run, how often, with which switches."""
    algorithm, manager = experiment.algorithm, experiment.rollout_manager
    actor = experiment.actor_rollout_ref.actor
    trajectories = trajectories_per_iteration(experiment)
    iterations = experiment.trainer.total_training_steps
    updates = -(-trajectories // actor.ppo_mini_batch_size) * actor.ppo_epochs
    warm = experiment.warm_start
    taught = "expert episodes"
    if warm.data is not None:
        count = len(read_demonstrations(warm.data, infra.s3))
        taught = f"of {count:,} conversations in {warm.data}"
    every = experiment.trainer.test_freq
    levels = {
        split: sum(getattr(spec, f"{split}_size") for spec in experiment.envs.values())
        for split in ("train", "val", "test")
    }
    gammas = f"gamma {algorithm.gamma:g}, lambda {algorithm.lam:g}"
    if estimator_of(experiment).needs_turn_end:
        high = algorithm.lam if algorithm.high_level_lam is None else algorithm.high_level_lam
        gammas += f"; per turn {algorithm.high_level_gamma:g}, {high:g}"
    switch = {True: "on", False: "off"}
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
        "warm start": f"{warm.steps} steps of {warm.batch_size} {taught}" if warm.steps else "none",
        "iterations": f"{iterations} x (rollout, judge, advantage, update), {infra.mode}",
        "rollout": f"{trajectories:,} trajectories "
        f"({experiment.data.train_batch_size} levels x {manager.n_trajectory}), "
        f"up to {manager.max_turns} turns ({_context(experiment)} in the prompt), temperature "
        f"{experiment.actor_rollout_ref.rollout.temperature:g}",
        "judge": judge_text(experiment.judge),
        "advantage": f"{algorithm.adv_estimator}, {gammas}",
        "masks": f"loss mask {switch[manager.use_loss_mask]}, "
        f"advantage mask {switch[manager.use_gae_mask]}, "
        f"turn rewards {switch[manager.use_multi_turn_reward]}",
        "networks": "actor"
        + (", critic" if has_critic(experiment) else "")
        + (", reference" if has_reference(experiment) else ""),
        "update": f"{updates} optimizer steps of {actor.ppo_mini_batch_size} trajectories, "
        f"learning rate {actor.optim.lr:g}",
        "evaluations": f"{levels['test']} test levels before and after"
        + (f", {levels['val']} validation levels every {every} iterations" if every else ""),
        "results": f"{infra.output_dir}, a checkpoint every {infra.save_freq} iterations",
    }
    return table("what would run", rows)


def sizes_table(experiment: ExperimentConfig, sizes: dict[str, ConversationSize]) -> Table:
    """Tokens of prompts, turns and trajectories against their budgets."""
    data, turns = experiment.data, experiment.rollout_manager.max_turns
    rows = {}
    for env_id, size in sizes.items():
        rows[f"{env_id}: prompt"] = f"{size.prompt:,} of {data.max_prompt_length:,} tokens"
        rows[f"{env_id}: response"] = (
            f"{size.response:,} (an expert's) of {data.max_response_length:,} tokens"
        )
        rows[f"{env_id}: observation"] = (
            f"{size.observation:,} tokens, {size.image_tokens:,} of them image"
        )
        contexts = size.rows_of(experiment)
        rows[f"{env_id}: trajectory"] = (
            f"{max(contexts):,} of {data.max_trajectory_length:,} tokens in {turns} turns"
            if len(contexts) == 1
            else f"{len(contexts)} contexts of up to {max(contexts):,} of "
            f"{data.max_trajectory_length:,} tokens in {turns} turns"
        )
    mean = sum(size.trajectory_of(experiment) for size in sizes.values()) / len(sizes)
    total = trajectories_per_iteration(experiment) * mean
    rows["an iteration"] = f"{total:,.0f} tokens if all turns are used"
    return table("sizes", rows)


def needs_table(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    shape: ModelShape,
    sizes: dict[str, ConversationSize],
) -> Table:
    """Memory, disk, and time or tokens of a step."""
    actor, critic = trained_parameters(experiment, shape)
    found = needs(experiment, infra, shape, sizes)
    rows = {
        "parameters": f"{shape.parameters:,}",
        "trained": f"actor {actor:,}" + (f", critic {critic:,}" if critic else ""),
        **{need.what: _sum_text(need.parts, need.limit) for need in found},
        "the run on disk": f"{_sum_text(disk(experiment, shape, sizes))}"
        + ("" if experiment.trainer.keep_iterations else " (trainer.keep_iterations keeps fewer)"),
    }
    if infra.engine == "verl":
        rows |= _step_rows(experiment, infra, shape, sizes)
    elif found[0].source == "RAM":
        seconds = iteration_seconds(experiment, infra, shape, sizes)
        iterations = experiment.trainer.total_training_steps
        rows["time"] = (
            f"about {duration_text(seconds)} an iteration, {duration_text(seconds * iterations)} "
            f"for {iterations}, without warm start and evaluations"
        )
    return table("needs (estimates, if all turns are used)", rows)


def _step_rows(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    shape: ModelShape,
    sizes: dict[str, ConversationSize],
) -> dict[str, str]:
    """Tokens of an optimizer step, and how many episodes the distributed engine plays at once."""
    tokens, budget = step_tokens(experiment, infra, sizes), token_budget(experiment, infra)
    rows = {
        "an optimizer step": f"{tokens:,} tokens per rank ({ranks(infra)}) in "
        f"{-(-tokens // budget)} micro batches of up to {budget:,}",
        "rollout servers": f"{servers(infra)} of {infra.verl.tensor_model_parallel_size} ranks",
    }
    if not is_cpu(infra):
        rollout, _ = gpu_memory(experiment, infra, shape, sizes)
        cached = rollout["key/value cache"] // cache_bytes(infra, shape)
        fit = cached // longest_context(experiment, sizes) * servers(infra)
        wanted = experiment.actor_rollout_ref.rollout.max_concurrency
        rows["episodes side by side"] = (
            f"{min(wanted, fit):,}: {cached * servers(infra):,} tokens of cache hold {fit:,} at "
            f"full length, `max_concurrency` allows {wanted:,}"
        )
    return rows


def _sum_text(parts: Bytes, limit: float | None = None) -> str:
    """A sum, of how much there is, and its parts, the largest first."""
    there = "" if limit is None else f" of {bytes_text(limit)}"
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    shown = [f"{name} {bytes_text(count)}" for name, count in ordered if count]
    return f"{bytes_text(sum(parts.values()))}{there}: {', '.join(shown)}"


def settings_text(experiment: ExperimentConfig, infra: InfraConfig) -> str:
    """What we set in verl's configuration, a line each."""
    path = experiment.actor_rollout_ref.model.path
    laid = settings(experiment, infra, path, cpu=is_cpu(infra))
    passed = {True: f" ({EXTRA})", False: ""}
    lines = [f" {s.key}: {s.value}{passed[s.source == EXTRA]}" for s in laid]
    return "\n".join(["what verl is told (the rest is its default)", *lines])


def _context(experiment: ExperimentConfig) -> str:
    window = context_window(experiment)
    if window is None:
        return "all"
    if experiment.rollout_manager.context == "compact":
        return f"a summary and up to {window} since"
    if experiment.rollout_manager.context == "gate":
        return f"all but what is dropped, in rows of {window} and more"
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
        parts.append(f"asks {judge.llm.model} {judge.llm.where}")
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


def table(title: str, rows: dict[str, str]) -> Table:
    """Names and texts under a title."""
    made = Table(show_header=False, title=title, title_justify="left", box=None)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, text in rows.items():
        made.add_row(name, Text(text))
    return made


def duration_text(seconds: float) -> str:
    """A duration in the largest unit of which it has two, such as `4.8 days`."""
    units = {"years": 31_557_600, "days": 86_400, "hours": 3_600, "min": 60, "s": 1}
    name, unit = next(((n, u) for n, u in units.items() if seconds >= 2 * u), ("s", 1))
    return (
        f"{seconds / unit:.2g} {name}" if seconds < 10 * unit else f"{seconds / unit:,.0f} {name}"
    )


def bytes_text(count: float) -> str:
    """A number of bytes in the largest unit that keeps it at 1 or more."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
