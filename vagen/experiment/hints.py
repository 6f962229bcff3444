"""Options without an effect, or with one that is not meant: what `vagen plan` remarks on them."""

from collections.abc import Iterator

from vagen.config.presets import PRESETS
from vagen.config.schema import ExperimentConfig
from vagen.envs.registry import parse_env_config
from vagen.experiment.checks import estimator_of

TURN_LEVEL = ("bi_level_gae", "turn_wise_gae")
"""Estimators with a discount and a lambda per turn."""


def hints(config: ExperimentConfig) -> Iterator[str]:
    """Says of each such option why, and what would be better."""
    algorithm, name = config.algorithm, config.algorithm.adv_estimator
    lam = algorithm.lam if algorithm.high_level_lam is None else algorithm.high_level_lam
    undiscounted = algorithm.gamma == algorithm.lam == 1.0
    if name in ("gae", "masked_gae") and undiscounted:
        yield (
            "algorithm.gamma = lam = 1: the advantage of a token is the reward to come less its "
            "value whichever tokens the recursion runs over, so that "
            "rollout_manager.use_gae_mask (M^adv) changes whitening and the critic's targets only"
        )
    if name == "bi_level_gae" and undiscounted and algorithm.high_level_gamma == lam == 1.0:
        yield "bi_level_gae without any discount and with lambda 1 is masked_gae"
    spec = estimator_of(config)
    if spec.needs_baselines and config.rollout_manager.use_multi_turn_reward:
        yield (
            f"{name} with turn rewards: a greedy episode's whole score is the baseline of every "
            "turn, also of late ones that have little to come; rewards at the end suit it "
            "(rollout_manager.use_multi_turn_reward = false), or an estimator with a critic"
        )
    yield from stalling(config)
    yield from _batch_shape(config)
    if not config.rollout_manager.use_loss_mask and spec.mask == "loss":
        yield (
            f"rollout_manager.use_loss_mask = false: {name} says nothing of observations, they "
            "dilute the policy loss and teach nothing"
        )


def _batch_shape(config: ExperimentConfig) -> Iterator[str]:
    """Says so if a preset plays each level often, and the levels are those of another preset."""
    values = PRESETS[config.preset].values if config.preset else {}
    levels = values.get("data", {}).get("train_batch_size")
    group = values.get("rollout_manager", {}).get("n_trajectory", 1)
    data, manager = config.data, config.rollout_manager
    if levels and manager.n_trajectory == group > 1 and data.train_batch_size > levels:
        yield (
            f"{data.train_batch_size * group:,} trajectories an iteration: preset {config.preset} "
            f"plays {levels} levels {group} times ({levels * group}), data.train_batch_size says "
            f"{data.train_batch_size} levels; data.train_batch_size={levels} is the preset's"
        )


def turn_discount(config: ExperimentConfig) -> float:
    """Discount from a turn to the next, as training sees an episode's rewards."""
    between_turns = config.algorithm.adv_estimator in TURN_LEVEL
    is_paid_then = config.rollout_manager.use_multi_turn_reward
    return config.algorithm.high_level_gamma if between_turns and is_paid_then else 1.0


def stalling(config: ExperimentConfig) -> Iterator[str]:
    """Says of each environment where winning in the last turn earns more than in the first.

    Of those that pay for success, with every text right; `vagen judge audit` plays them all.
    """
    manager, judge = config.rollout_manager, config.judge
    if manager.turn_reward_budget is not None:
        return
    for config_id, spec in config.envs.items():
        options = parse_env_config(spec.env_name, spec.env_config)
        values = options.reward_values
        if "success" not in values:
            continue
        paid = values.get("format", 0.0)
        if judge.use_state_reward:
            inner = options.layout.inner
            paid += judge.observation_weight * ("observation" in inner)
            paid += judge.prediction_weight * ("prediction" in inner)
        paid += values.get("step", 0.0)
        gammas = [turn_discount(config) ** turn for turn in range(manager.max_turns)]
        gain = paid * sum(gammas[1:]) - values["success"] * (1 - gammas[-1])
        if gain > 0:
            yield (
                f"{config_id}: winning in turn {manager.max_turns} earns {gain:.2f} more than in "
                "the first, since every turn is paid for format and texts; "
                "rollout_manager.turn_reward_budget (3, say) pays each episode the same for them"
            )
