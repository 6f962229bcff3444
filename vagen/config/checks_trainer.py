"""What guard, early stopping, validation, measures and entropy control do not go with."""

from vagen.config.base import Refusals
from vagen.config.schema import ExperimentConfig


def trainer_refusals(config: ExperimentConfig) -> Refusals:
    """Keys of the trainer that nothing comes of, and why."""
    trainer = config.trainer
    guard, stop = trainer.guard, trainer.early_stop
    if guard.min_history > guard.window:
        yield (
            "trainer.guard.min_history",
            f"{guard.min_history} good iterations never come together, the medians are over "
            f"trainer.guard.window = {guard.window}; make it smaller",
        )
    if config.rollout_manager.n_trajectory < 2:
        for key, threshold in (
            ("trainer.guard.min_reward_std_factor", guard.min_reward_std_factor),
            ("trainer.early_stop.min_reward_variance", stop.min_reward_variance),
        ):
            if threshold is not None:
                yield (
                    key,
                    "a group of one trajectory has no variance; set it to null, or "
                    "rollout_manager.n_trajectory to at least 2",
                )
    yield from _entropy(config)
    policy = config.actor_rollout_ref
    if policy.rollout.is_cut and policy.actor.tis_imp_ratio_cap is not None:
        yield (
            "actor_rollout_ref.actor.tis_imp_ratio_cap",
            "importance weights compare with the whole distribution, and the rollout's "
            "probabilities are after top-p and top-k; set actor_rollout_ref.rollout.top_p to 1 and "
            "top_k to -1",
        )
    elif policy.rollout.is_cut and trainer.agreement.enable:
        yield (
            f"actor_rollout_ref.rollout.{'top_p' if policy.rollout.top_p < 1 else 'top_k'}",
            "the rollout's probabilities are after top-p and top-k, and the trainer's cannot agree "
            "with those; set them to 1 and -1, or trainer.agreement.enable to false",
        )
    algorithm = config.algorithm
    drops = algorithm.overlong.mask_truncated or algorithm.rollout_filter.strategy != "none"
    if stop.empty_batches is not None and not drops:
        yield (
            "trainer.early_stop.empty_batches",
            "no batch is ever empty without algorithm.rollout_filter; set one, or this to null",
        )
    if stop.min_val_success is not None and not trainer.test_freq:
        yield (
            "trainer.early_stop.min_val_success",
            "nothing is validated; set trainer.test_freq, or this to null",
        )
    if trainer.select == "best_validation" and not trainer.test_freq:
        yield (
            "trainer.select",
            "best_validation chooses among policies that were validated; set trainer.test_freq, or "
            "this to last",
        )
    if trainer.template_collapse_freq and trainer.template_collapse_samples < 2:
        yield (
            "trainer.template_collapse_samples",
            "the measure compares a response's prompt with other prompts; make it at least 2",
        )


def _entropy(config: ExperimentConfig) -> Refusals:
    actor, guard = config.actor_rollout_ref.actor, config.trainer.guard
    target, largest = actor.entropy_ctrl.target, actor.entropy_ctrl.max_coeff
    if target is None:
        return
    if actor.entropy_coeff > largest:
        yield (
            "actor_rollout_ref.actor.entropy_coeff",
            f"{actor.entropy_coeff:g}, where it begins, is above entropy_ctrl.max_coeff = "
            f"{largest:g}; make it smaller, or that larger",
        )
    if guard.enable and guard.min_entropy is not None and target <= guard.min_entropy:
        yield (
            "actor_rollout_ref.actor.entropy_ctrl.target",
            f"{target:g} is not above trainer.guard.min_entropy = {guard.min_entropy:g}: updates "
            "would be undone before there is a bonus; make it larger",
        )
