"""What a run of the local engine takes of time and disk, estimated before anything is made.

Both are meant to be right within a factor of two or three. An iteration of `frozenlake-tiny` took
5.0 s on two cores (benchmarks/results/engine.json).
"""

import time
from dataclasses import dataclass

from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.checks import has_critic, has_reference, trajectories_per_iteration
from vagen.plan.shape import ModelShape
from vagen.plan.sizes import ConversationSize
from vagen.plan.verl import checkpoints

BATCH_BYTES, EVALUATION_BYTES = 16, 44
"""Bytes of a token in an iteration's batches, and in an evaluation with its page."""
FORWARDS = 3
"""Forward passes that a token's backward pass and its own forward pass are worth."""
_PROBE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes that a run holds in the end."""

    iteration: int
    """Batches of one iteration."""
    kept: int
    """Iterations whose batches stay."""
    checkpoints: int
    evaluations: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.iteration * self.kept + self.checkpoints + self.evaluations


def disk(
    experiment: ExperimentConfig, shape: ModelShape, sizes: dict[str, ConversationSize]
) -> Disk:
    """Bytes of a run, if all turns of every episode are used."""
    trainer, envs = experiment.trainer, experiment.envs
    saved = checkpoints(experiment, shape)
    best = trainer.select == "best_validation"
    iterations = trainer.total_training_steps
    validations = sum(trainer.validates_after(number) for number in range(iterations))
    attempts = experiment.actor_rollout_ref.rollout.val_kwargs.n
    evaluations = 0
    for env_id, size in sizes.items():
        episodes = 2 * envs[env_id].test_size + validations * envs[env_id].val_size
        frames = 2 * _frame_bytes(experiment, size)
        tokens = EVALUATION_BYTES * sum(size.rows_of(experiment))
        evaluations += attempts * episodes * (tokens + frames)
    mean = sum(
        BATCH_BYTES * sum(size.rows_of(experiment)) + _frame_bytes(experiment, size)
        for size in sizes.values()
    ) / len(sizes)
    return Disk(
        iteration=int(trajectories_per_iteration(experiment) * mean),
        kept=min(iterations, trainer.keep_iterations or iterations),
        checkpoints=saved.one * (saved.count + best),
        evaluations=evaluations,
    )


def iteration_seconds(
    experiment: ExperimentConfig,
    infra: InfraConfig,
    shape: ModelShape,
    sizes: dict[str, ConversationSize],
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
    mean = sum(sum(size.rows_of(experiment)) for size in sizes.values()) / len(sizes)
    tokens = trajectories_per_iteration(experiment) * mean
    operations = 2.0 * shape.parameters * tokens * passes
    return operations / (_operations_per_second() * (infra.threads or core_count()))


def _frame_bytes(experiment: ExperimentConfig, size: ConversationSize) -> int:
    return size.frame_bytes * (1 + experiment.rollout_manager.max_turns)


def _operations_per_second() -> float:
    """Floating-point operations per second of one core, in products such as a small model's."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        a, b = torch.ones(512, 128), torch.ones(128, 512)
        begun, count = time.perf_counter(), 0
        while time.perf_counter() - begun < _PROBE_SECONDS:
            torch.mm(a, b)
            count += 1
        return 2.0 * 512 * 128 * 512 * count / (time.perf_counter() - begun)
    finally:
        torch.set_num_threads(threads)
