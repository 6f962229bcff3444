"""What the section `rollout_manager` does not go with: sampling, contexts, stale episodes."""

from vagen.config.base import Refusals
from vagen.config.schema import ExperimentConfig


def rollout_refusals(config: ExperimentConfig) -> Refusals:
    """Keys about episodes that cannot be as they are, and why."""
    manager = config.rollout_manager
    over, size = manager.over_sampling_batch_size, config.data.train_batch_size
    for name, on, without in (
        ("one_step_off", manager.one_step_off, "false"),
        ("over_sampling_batch_size", over is not None, "null"),
    ):
        if not on:
            continue
        option = f"rollout_manager.{name}"
        if config.actor_rollout_ref.actor.tis_imp_ratio_cap is None:
            yield (
                "actor_rollout_ref.actor.tis_imp_ratio_cap",
                f"{option} learns from episodes that older weights played, which needs this "
                f"correction; set it, e.g. to 2, or {option} to {without}",
            )
        if config.trainer.guard.enable:
            yield (
                "trainer.guard.enable",
                "it goes back to the weights that the latest episodes speak of, and with "
                f"{option} those are older than it thinks; set it to false, or {option} to "
                f"{without}",
            )
    if over is not None and over < size:
        yield (
            "rollout_manager.over_sampling_batch_size",
            f"{over} levels never make a batch of data.train_batch_size = {size}; set it to that, "
            "or above, so that there is something to carry on",
        )
    if over is not None and config.algorithm.filter_groups.max_num_gen_batches > 1:
        yield (
            "algorithm.filter_groups.max_num_gen_batches",
            "groups that are all alike are replaced in the iteration that played them, which "
            "rollout_manager.over_sampling_batch_size does not wait for; set it to 1, or "
            "over_sampling_batch_size to null",
        )
    windowed = manager.context in ("window", "compact", "gate")
    if windowed and manager.window_size is None:
        yield (
            "rollout_manager.window_size",
            f"context = {manager.context} needs the number of turns in the prompt, the present one "
            "included; set it, e.g. to 2, or take context = concat",
        )
    if not windowed and manager.window_size is not None:
        yield (
            "rollout_manager.window_size",
            f"context = {manager.context} has no window; set it to null, or take context = window",
        )
    if manager.keep_cost and manager.context != "gate":
        yield (
            "rollout_manager.keep_cost",
            f"context = {manager.context} lets the policy drop nothing; set it to 0, or take "
            "context = gate",
        )
    if config.actor_rollout_ref.rollout.temperature == 0:
        yield (
            "actor_rollout_ref.rollout.temperature",
            "greedy training episodes explore nothing and have no log-probabilities to compare "
            "with; set it above 0 (`val_kwargs.temperature` may be 0)",
        )
