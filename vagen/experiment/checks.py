"""What the schema cannot see: environment options, and combinations that cannot work.

Each refusal says which keys do not go together, why, and what would.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from vagen.config.base import ConfigError, Refusals, canonical_values
from vagen.config.errors import KeyPath, unknown_name, validate
from vagen.config.schema import ExperimentConfig, context_window, trajectories_per_iteration
from vagen.envs.registry import ADAPTERS, ENVIRONMENTS, UnknownEnvironmentError, get_environment
from vagen.envs.turns import TurnEnv
from vagen.experiment.checks_judge import judge_refusals
from vagen.rollout.thoughts import Thoughts

if TYPE_CHECKING:
    from vagen.advantage import EstimatorSpec

PlaceOf = Callable[[KeyPath], str | None]


def _nowhere(_: KeyPath) -> None:
    return None


def estimator_of(config: ExperimentConfig) -> "EstimatorSpec":
    """The experiment's advantage estimator, with what it needs.

    Raises:
        ConfigError: If no estimator has that name, or one that is not built in cannot be loaded.
    """
    # Estimators are declared where they are computed, with torch: seconds to import.
    from vagen.advantage import AdvantageError, get_estimator

    try:
        return get_estimator(config.algorithm.adv_estimator)
    except AdvantageError as error:
        raise ConfigError(f"`algorithm.adv_estimator`: {error}") from error


def has_critic(config: ExperimentConfig) -> bool:
    """Whether a critic is trained: if the estimator reads values."""
    return estimator_of(config).needs_critic


def needs_greedy_baseline(config: ExperimentConfig) -> bool:
    """Whether each training level is also played greedily: its score is ReMax's baseline."""
    return estimator_of(config).needs_baselines


def resolve_environments(
    config: ExperimentConfig, place_of: PlaceOf = _nowhere
) -> ExperimentConfig:
    """Checks the options of each environment and fills in their defaults.

    Raises:
        ConfigError: For an unknown environment or option, or an impossible value.
    """
    if not config.envs:
        raise ConfigError("`envs` is empty; name at least one environment, e.g. FrozenLake")
    resolved = {}
    mistakes = []
    for env_id, spec in config.envs.items():
        try:
            config_class = get_environment(spec.env_name).config_class
        except UnknownEnvironmentError as error:
            sentence = str(error)
            if ":" not in spec.env_name:
                names = (*ENVIRONMENTS, *ADAPTERS)
                sentence = unknown_name("environment", spec.env_name, names)
            mistakes.append(f"`envs.{env_id}.env_name`: {sentence}")
            continue
        given = {"memory": True} if config.rollout_manager.context == "gate" else {}
        try:
            options = validate(
                config_class, spec.env_config | given, place_of, ("envs", env_id, "env_config")
            )
        except ConfigError as error:
            mistakes.append(str(error))
            continue
        resolved[env_id] = spec.model_copy(update={"env_config": canonical_values(options)})
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return config.model_copy(update={"envs": resolved})


def check_experiment(
    config: ExperimentConfig, place_of: PlaceOf = _nowhere, *, trains: bool = True
) -> None:
    """Rejects an experiment that cannot run.

    Args:
        config: With resolved environments.
        place_of: Gives the file and line, preset or override that set a key.
        trains: Whether a model is to be trained so; if not, its episodes alone must be possible.

    Raises:
        ConfigError: With one line per reason.
    """
    of_training = (
        _estimation,
        _placement,
        _scores,
        _update,
        _adapters,
        _trainer,
        judge_refusals,
        _sizes,
        _experts,
    )
    refusals = []
    for check in (_rollout, *(of_training if trains else ())):
        for path, reason in check(config):
            place = place_of(tuple(path.split(".")))
            refusals.append(f"`{path}`{f' ({place})' if place else ''}: {reason}")
    if refusals:
        raise ConfigError("\n".join(refusals))


def check_thoughts(config: ExperimentConfig, thoughts: Thoughts | None) -> None:
    """Rejects an experiment that cannot run with the model's chat template.

    Args:
        config: The experiment.
        thoughts: What the chat template does with thoughts; None if it knows none.

    Raises:
        ConfigError: With the reason.
    """
    manager, most = config.rollout_manager, config.data.max_response_length
    if manager.thinking_budget is not None:
        if thoughts is None:
            raise ConfigError(
                "`rollout_manager.thinking_budget`: the model's chat template knows no thoughts to "
                "be closed; set it to null, or take a reasoning model"
            )
        closing = len(thoughts.closing_ids)
        if manager.thinking_budget + closing >= most:
            raise ConfigError(
                f"`rollout_manager.thinking_budget`: {manager.thinking_budget} tokens of thought, "
                f"and {closing} that close it, leave none of data.max_response_length = {most} for "
                "the answer; make it smaller, or that larger"
            )
    name, several = config.algorithm.adv_estimator, manager.max_turns > 1
    if thoughts is not None and thoughts.drops and several and not estimator_of(config).stitches:
        raise ConfigError(
            f"`algorithm.adv_estimator`: {name} needs a trajectory in one row, and the model's "
            "chat template takes thoughts out of earlier answers, which makes several; take an "
            "estimator over sampled tokens (masked_gae, bi_level_gae), or a chat template that "
            "keeps thoughts"
        )


def _estimation(config: ExperimentConfig) -> Refusals:
    name = config.algorithm.adv_estimator
    spec = estimator_of(config)
    if spec.needs_critic and config.critic.enable is False:
        yield (
            "critic.enable",
            f"{name} reads the critic's values; leave it null or true, or take an estimator "
            "without a critic (grpo, rloo)",
        )
    if not spec.needs_critic and config.critic.enable:
        yield (
            "critic.enable",
            f"{name} reads no values and has no returns for a critic to learn; set it to null or "
            "false, or take an estimator with a critic (masked_gae, bi_level_gae)",
        )
    if spec.value_mask == "turn_end" and not config.critic.use_reward_mask:
        yield (
            "critic.use_reward_mask",
            f"{name} has returns at the ends of turns only, the critic would learn 0 everywhere "
            "else; set it to true",
        )
    if spec.group_based and config.rollout_manager.n_trajectory < 2:
        yield (
            "rollout_manager.n_trajectory",
            f"{name} compares trajectories of one level and needs at least 2 of them; "
            "with 1 every advantage is 0 or the bare score",
        )
    gae_mask = config.rollout_manager.use_gae_mask
    if spec.value_mask == "attention" and gae_mask:
        yield (
            "rollout_manager.use_gae_mask",
            f"{name} runs over every token; set it to false, or take masked_gae",
        )
    if spec.value_mask == "loss" and not gae_mask:
        yield (
            "rollout_manager.use_gae_mask",
            f"{name} runs over sampled tokens only; set it to true, or take gae",
        )
    if spec.value_mask == "turn_start" and config.critic.use_reward_mask:
        yield (
            "critic.use_reward_mask",
            f"{name} has returns at the first tokens of turns, not at their ends; set it to false, "
            "or take no_concat_gae_last",
        )
    if not spec.stitches and context_window(config) is not None:
        yield (
            "rollout_manager.context",
            f"{name} needs a trajectory in one row, {config.rollout_manager.context} makes "
            "several; take concat, or an estimator over sampled tokens (masked_gae, bi_level_gae)",
        )
    if spec.batch_based and trajectories_per_iteration(config) < 2:
        yield (
            "data.train_batch_size",
            f"{name} compares the trajectories of an iteration and needs at least 2 of them",
        )
    yield from _adaptive_credit(config, spec)
    control = config.algorithm.kl_ctrl
    if control.type == "adaptive" and control.kl_coef == 0:
        yield (
            "algorithm.kl_ctrl.kl_coef",
            "the adaptive controller multiplies it, so that it would stay 0; start above 0",
        )


def _placement(config: ExperimentConfig) -> Refusals:
    if config.rollout_manager.reward_placement == "turn_end":
        return
    reasons = {
        f"{config.algorithm.adv_estimator} reads rewards at the ends of turns only": not (
            estimator_of(config).reads_token_rewards
        ),
        "rollout_manager.use_multi_turn_reward = false puts all rewards on the last token": not (
            config.rollout_manager.use_multi_turn_reward
        ),
        "algorithm.reward_normalization changes the rewards of whole turns": (
            config.algorithm.reward_normalization.method != "none"
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            yield "rollout_manager.reward_placement", f"{reason}; set it to turn_end"


def _scores(config: ExperimentConfig) -> Refusals:
    group = config.rollout_manager.n_trajectory
    normalization = config.algorithm.reward_normalization
    if normalization.method != "none" and normalization.grouping == "group" and group < 2:
        yield (
            "algorithm.reward_normalization.grouping",
            "the only trajectory of a level is its own mean, every score would become 0; set "
            "rollout_manager.n_trajectory to at least 2, or take batch",
        )
    if config.algorithm.rollout_filter.strategy != "none" and group < 2:
        yield (
            "algorithm.rollout_filter.strategy",
            "it compares the trajectories of one level and with 1 would drop them all; set "
            "rollout_manager.n_trajectory to at least 2, or take none",
        )
    if config.algorithm.filter_groups.max_num_gen_batches > 1 and group < 2:
        yield (
            "algorithm.filter_groups.max_num_gen_batches",
            "a group of one trajectory never varies; set rollout_manager.n_trajectory to at least "
            "2, or this to 1",
        )
    overlong, most = config.algorithm.overlong, config.data.max_response_length
    if overlong.buffer_len is not None and overlong.buffer_len >= most:
        yield (
            "algorithm.overlong.buffer_len",
            f"{overlong.buffer_len} leaves no length without a penalty, answers have "
            f"data.max_response_length = {most} tokens at most; make it smaller",
        )
    if needs_greedy_baseline(config):
        name = config.algorithm.adv_estimator
        if config.rollout_manager.over_sampling_batch_size is not None:
            yield (
                "rollout_manager.over_sampling_batch_size",
                f"{name} compares an episode with a greedy one of the same weights, and several "
                "weights play one that is carried on; set it to null, or take rloo",
            )
        if normalization.method != "none":
            yield (
                "algorithm.reward_normalization.method",
                f"{name} subtracts the score of a greedy episode, which is not normalised; take "
                "none",
            )
        if config.judge.use_state_reward:
            yield (
                "judge.use_state_reward",
                f"the greedy episode that {name} subtracts is not judged, the difference would be "
                "off by the judge's part; set it to false, or take another estimator",
            )


def _adaptive_credit(config: ExperimentConfig, spec: "EstimatorSpec") -> Refusals:
    from vagen.advantage.credit import HIGH, LOW

    if not spec.adapts:
        return
    options, gamma = config.algorithm.adaptive_credit, config.algorithm.high_level_gamma
    if options.mode == "lambda" and config.algorithm.high_level_lam is not None:
        yield (
            "algorithm.high_level_lam",
            f"{config.algorithm.adv_estimator} chooses the lambda of each turn itself in mode "
            "lambda; set it to null, or take bi_level_gae",
        )
    if options.mode == "gamma" and not LOW < gamma < HIGH:
        yield (
            "algorithm.high_level_gamma",
            f"{gamma} is the discount at average progress; it must lie between {LOW} and {HIGH}",
        )


def _update(config: ExperimentConfig) -> Refusals:
    actor = config.actor_rollout_ref.actor
    trajectories = trajectories_per_iteration(config)
    for option, wrong in (
        ("rollout_manager.use_loss_mask", not config.rollout_manager.use_loss_mask),
        ("actor_rollout_ref.actor.tis_imp_ratio_cap", actor.tis_imp_ratio_cap is not None),
    ):
        if wrong and actor.use_rollout_log_probs:
            yield (
                "actor_rollout_ref.actor.use_rollout_log_probs",
                f"with the present {option} the update reads log-probabilities that the rollout "
                "did not record; set it to false",
            )
    why = {"cispo": "bounds the weight of every token already", "kl_cov": "clips nothing"}
    if (mode := actor.policy_loss.loss_mode) in why and actor.clip_ratio_c is not None:
        yield (
            "actor_rollout_ref.actor.clip_ratio_c",
            f"{mode} {why[mode]} and has no dual clip; set it to null",
        )
    if mode == "clip_cov" and actor.policy_loss.clip_cov_lb >= actor.policy_loss.clip_cov_ub:
        yield (
            "actor_rollout_ref.actor.policy_loss.clip_cov_lb",
            "no covariance is above this and below clip_cov_ub; set it lower",
        )
    if actor.ppo_mini_batch_size > trajectories:
        yield (
            "actor_rollout_ref.actor.ppo_mini_batch_size",
            f"{actor.ppo_mini_batch_size} is more than the {trajectories} trajectories of an "
            "iteration (data.train_batch_size x rollout_manager.n_trajectory)",
        )
    if actor.ppo_max_token_len < config.data.max_trajectory_length:
        yield (
            "actor_rollout_ref.actor.ppo_max_token_len",
            f"{actor.ppo_max_token_len} cannot hold one trajectory of "
            f"data.max_trajectory_length = {config.data.max_trajectory_length} tokens",
        )
    warmup = config.trainer.critic_warmup
    if config.critic.warmup_epochs is not None and not warmup:
        yield (
            "critic.warmup_epochs",
            "no iteration is the critic's alone; set trainer.critic_warmup to at least 1, or this "
            "to null",
        )
    if warmup and not has_critic(config):
        yield ("trainer.critic_warmup", "there is no critic to warm up; set it to 0")
    elif warmup >= config.trainer.total_training_steps:
        yield (
            "trainer.critic_warmup",
            f"the policy would never learn in trainer.total_training_steps = "
            f"{config.trainer.total_training_steps} iterations; make it smaller",
        )


def _adapters(config: ExperimentConfig) -> Refusals:
    frozen = config.actor_rollout_ref.model.freeze_vision_tower
    if frozen and (config.actor_rollout_ref.model.lora_rank or config.critic.model.lora_rank):
        yield (
            "actor_rollout_ref.model.freeze_vision_tower",
            "adapters train nothing else: leave the tower's layers out of their target_modules, "
            "and set this to false",
        )
    if config.critic.model.lora_rank and not has_critic(config):
        yield ("critic.model.lora_rank", "there is no critic to get adapters; set it to 0")
    models = {
        "actor_rollout_ref.model": config.actor_rollout_ref.model,
        "critic.model": config.critic.model,
    }
    for key, model in models.items():
        if model.lora_rank and not model.target_modules:
            yield (
                f"{key}.target_modules",
                "no layer would get an adapter; name some, or take all-linear",
            )


def _sizes(config: ExperimentConfig) -> Refusals:
    data = config.data
    levels = sum(spec.train_size for spec in config.envs.values())
    if data.train_batch_size > levels:
        yield (
            "data.train_batch_size",
            f"{data.train_batch_size} is more than the {levels} training levels (train_size)",
        )
    first_turn = data.max_prompt_length + data.max_response_length
    first_turn += config.rollout_manager.whole_turns
    if first_turn > data.max_trajectory_length:
        end = " + 1 for its end" if config.rollout_manager.whole_turns else ""
        yield (
            "data.max_trajectory_length",
            f"{data.max_trajectory_length} cannot hold the first turn: data.max_prompt_length + "
            f"data.max_response_length{end} = {first_turn}",
        )


def _experts(config: ExperimentConfig) -> Refusals:
    warm, context = config.warm_start, config.rollout_manager.context
    if warm.data is not None:
        if not warm.steps:
            yield "warm_start.data", "is learnt in `warm_start.steps`, which is 0: set it"
        if warm.random_moves:
            yield "warm_start.random_moves", "is the expert's; set it to 0 with `warm_start.data`"
        if context in ("compact", "gate"):
            yield (
                "warm_start.data",
                f"shows no summaries and drops nothing, as `rollout_manager.context={context}` "
                "does: set it to concat, no_concat or window",
            )
    if not warm.steps or warm.data is not None:
        return
    for env_id, spec in config.envs.items():
        environment = get_environment(spec.env_name).load()
        any_action = getattr(environment, "any_action", TurnEnv.any_action)
        drawn = getattr(environment, "actions", ()) or any_action is not TurnEnv.any_action
        if config.warm_start.random_moves and not drawn:
            yield (
                "warm_start.random_moves",
                f"{spec.env_name} (`envs.{env_id}`) has neither a list of `actions` to draw from "
                "nor an `any_action`; set it to 0",
            )
        if not environment.has_expert:
            yield (
                "warm_start.steps",
                f"{spec.env_name} (`envs.{env_id}`) has no expert to learn from; set it to 0 and "
                "start from a model that can follow the prompt, or write an environment of your "
                "own with an expert_response",
            )


def _rollout(config: ExperimentConfig) -> Refusals:
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
    if manager.compact_budget is not None and manager.context != "compact":
        yield (
            "rollout_manager.compact_budget",
            f"context = {manager.context} has no summaries; set it to null, or take context = "
            "compact",
        )
    budget, most = manager.thinking_budget, config.data.max_response_length
    if budget is not None and budget >= most:
        yield (
            "rollout_manager.thinking_budget",
            f"{budget} tokens of thought leave none of data.max_response_length = {most} for the "
            "answer; make it smaller, or that larger",
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


def _trainer(config: ExperimentConfig) -> Refusals:
    """Keys of the trainer that nothing comes of, and why."""
    trainer = config.trainer
    guard, stop = trainer.guard, trainer.early_stop
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
