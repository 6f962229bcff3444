"""The plan as tables: steps, sizes of conversations, memory and tokens."""

from rich.table import Table
from rich.text import Text

from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.checks import (
    context_window,
    estimator_of,
    has_critic,
    has_reference,
    trajectories_per_iteration,
)
from vagen.config.judge_options import JudgeConfig
from vagen.engines.verl.mapping import EXTRA, ranks, servers, settings, token_budget
from vagen.plan.gpu import GpuMemory
from vagen.plan.local import MemoryEstimate
from vagen.plan.shape import ModelShape, trained_parameters
from vagen.plan.sizes import ConversationSize
from vagen.plan.spending import Disk
from vagen.plan.verl import Checkpoints, HostMemory, Throughput


def steps_table(experiment: ExperimentConfig, infra: InfraConfig) -> Table:
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


def sizes_table(experiment: ExperimentConfig, sizes: dict[str, ConversationSize]) -> Table:
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
        contexts = size.rows_of(experiment)
        rows[f"{env_id}: trajectory"] = (
            f"{max(contexts):,} of {data.max_trajectory_length:,} tokens in {turns} turns"
            if window is None
            else f"{len(contexts)} contexts of up to {max(contexts):,} of "
            f"{data.max_trajectory_length:,} tokens in {turns} turns"
        )
    mean = sum(sum(size.rows_of(experiment)) for size in sizes.values()) / len(sizes)
    total = trajectories_per_iteration(experiment) * mean
    rows["an iteration"] = f"{total:,.0f} tokens if all turns are used"
    return table("sizes", rows)


def memory_table(
    shape: ModelShape, trained: tuple[int, int], memory: MemoryEstimate, device: str, limit: int
) -> Table:
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
        "frames": f"{bytes_text(memory.frames)} at most, processed",
        "peak": f"{bytes_text(memory.peak)} of {bytes_text(limit)} {device}",
    }
    return table("memory of the local engine", rows)


def spending_table(experiment: ExperimentConfig, disk: Disk, seconds: float | None) -> Table:
    """Time and disk; the time is None where it is not estimated."""
    iterations = experiment.trainer.total_training_steps
    rows = {
        "an iteration": f"{bytes_text(disk.iteration)} of batches"
        + ("" if seconds is None else f", about {duration_text(seconds)}"),
        "disk": f"about {bytes_text(disk.total)}: batches of {disk.kept} iterations "
        f"{bytes_text(disk.iteration * disk.kept)}, checkpoints {bytes_text(disk.checkpoints)}, "
        f"evaluations {bytes_text(disk.evaluations)}"
        + ("" if experiment.trainer.keep_iterations else " (trainer.keep_iterations keeps fewer)"),
    }
    if seconds is not None:
        rows["time"] = (
            f"about {duration_text(seconds * iterations)} for {iterations} iterations, "
            "without warm start and evaluations"
        )
    return table("time and disk (estimates, if all turns are used)", rows)


def settings_text(experiment: ExperimentConfig, infra: InfraConfig, *, cpu: bool) -> str:
    """What we set in verl's configuration, a line each."""
    path = experiment.actor_rollout_ref.model.path
    laid = settings(experiment, infra, path, cpu=cpu)
    passed = {True: f" ({EXTRA})", False: ""}
    lines = [f" {s.key}: {s.value}{passed[s.source == EXTRA]}" for s in laid]
    return "\n".join(["what verl is told (the rest is its default)", *lines])


def gpu_table(
    experiment: ExperimentConfig, infra: InfraConfig, shape: ModelShape, memory: GpuMemory
) -> Table:
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
        "attention": f"{bytes_text(memory.attention)} (estimate)",
        "logits": f"{bytes_text(memory.logits)} (estimate)",
        "servers in updates": bytes_text(memory.serving),
        "rollout weights": bytes_text(memory.vllm_weights),
        "key/value cache": bytes_text(max(memory.cache, 0)),
        "peak": f"rollout {bytes_text(memory.rollout)}, update {bytes_text(memory.update)} of "
        f"{infra.verl.gpu_memory_gib:g} GiB",
    }
    apart = infra.verl.rollout_gpus
    others = f" that train, and {apart} that play" if apart else ""
    return table(f"memory of each of {ranks(infra)} GPUs{others}", rows)


def host_table(infra: InfraConfig, memory: HostMemory, *, cpu: bool) -> Table:
    """One node's memory."""
    rows = {
        "processes": bytes_text(memory.processes),
        "reference": bytes_text(memory.reference),
        "offloaded": bytes_text(memory.offloaded),
        "frames": bytes_text(memory.episodes),
        "while saving": bytes_text(memory.saving),
        "while loading": bytes_text(memory.loading),
        "peak": f"{bytes_text(memory.peak)}{_of(infra.verl.host_memory_gib)} (estimate)"
        + (", and what a GPU would hold" if cpu else ""),
    }
    return table(f"host memory of each of {infra.verl.nnodes} nodes", rows)


def checkpoint_table(infra: InfraConfig, found: Checkpoints) -> Table:
    """Checkpoints against the disk."""
    rows = {
        "one": f"{bytes_text(found.one)}, every {infra.save_freq} iterations",
        "at once": f"{found.count}: {bytes_text(found.peak)}{_of(infra.verl.scratch_gib)}",
    }
    return table("checkpoints", rows)


def _of(limit: float | None) -> str:
    return "" if limit is None else f" of {limit:g} GiB"


def throughput_table(
    experiment: ExperimentConfig, infra: InfraConfig, rates: Throughput, *, cpu: bool
) -> Table:
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


def _on(switch: bool) -> str:
    return "on" if switch else "off"


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
