"""Every refused combination, with its message; and the nearest one that runs."""

from pathlib import Path

import pytest

from vagen.config import ConfigError
from vagen.config.schema import has_reference, trajectories_per_iteration
from vagen.experiment.checks import has_critic
from vagen.experiment.load import load_experiment

LAKE = "name: lake\nenvs:\n  lake:\n    env_name: FrozenLake\n"
GRPO = ["algorithm.adv_estimator=grpo"]
REMAX = ["algorithm.adv_estimator=remax", "judge.use_state_reward=false"]


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "lake.yaml"
    path.write_text(LAKE)
    return path


OFF = ["rollout_manager.one_step_off=true"]
ACTOR = "actor_rollout_ref.actor"
CAPPED = [*OFF, "actor_rollout_ref.actor.tis_imp_ratio_cap=2"]

OVER = "rollout_manager.over_sampling_batch_size"
WEIGHTED = ["data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4", *CAPPED[1:]]
PARTIAL = [*WEIGHTED, f"{OVER}=6"]

CASES = [
    (OFF, "`actor_rollout_ref.actor.tis_imp_ratio_cap`: rollout_manager.one_step_off", CAPPED),
    (
        [*CAPPED, "trainer.guard.enable=true"],
        "`trainer.guard.enable` (override `trainer.guard.enable=true`): it goes back",
        ["trainer.guard.enable=true"],
    ),
    (
        [*WEIGHTED[:2], f"{OVER}=6"],
        f"`actor_rollout_ref.actor.tis_imp_ratio_cap`: {OVER} learns from episodes that older",
        PARTIAL,
    ),
    (
        ["actor_rollout_ref.rollout.top_p=0.95"],
        "`actor_rollout_ref.rollout.top_p` (override `actor_rollout_ref.rollout.top_p=0.95`): the "
        "rollout's probabilities are after top-p and top-k",
        ["actor_rollout_ref.rollout.top_p=0.95", "trainer.agreement.enable=false"],
    ),
    (
        ["actor_rollout_ref.rollout.top_k=1"],
        "`actor_rollout_ref.rollout.top_k` (override `actor_rollout_ref.rollout.top_k=1`): the ",
        ["actor_rollout_ref.rollout.val_kwargs.top_k=1"],
    ),
    (
        [*WEIGHTED, "actor_rollout_ref.rollout.top_p=0.95"],
        "importance weights compare with the whole distribution",
        [*WEIGHTED, "actor_rollout_ref.rollout.val_kwargs.top_p=0.95"],
    ),
    (
        [*WEIGHTED, f"{OVER}=3"],
        f"`{OVER}` (override `{OVER}=3`): 3 levels never make a batch",
        [*WEIGHTED, f"{OVER}=4"],
    ),
    (
        [*PARTIAL, "trainer.guard.enable=true"],
        f"and with {OVER} those are older than it thinks; set it to false, or {OVER} to null",
        [*PARTIAL, "rollout_manager.one_step_off=true"],
    ),
    (
        [*PARTIAL, f"{ACTOR}.use_rollout_log_probs=true"],
        "with the present actor_rollout_ref.actor.tis_imp_ratio_cap the update reads log-prob",
        [*PARTIAL, f"{ACTOR}.use_rollout_log_probs=false"],
    ),
    (
        [*PARTIAL, *REMAX],
        f"`{OVER}` (override `{OVER}=6`): remax compares an episode with a greedy one",
        [*PARTIAL, "algorithm.adv_estimator=rloo", "rollout_manager.n_trajectory=2"],
    ),
    (
        [
            *PARTIAL,
            "algorithm.filter_groups.max_num_gen_batches=2",
            "rollout_manager.n_trajectory=2",
        ],
        "groups that are all alike are replaced in the iteration that played them",
        [*PARTIAL, "rollout_manager.n_trajectory=2"],
    ),
    (
        ["actor_rollout_ref.actor.use_rollout_log_probs=true", *CAPPED[1:]],
        "`actor_rollout_ref.actor.use_rollout_log_probs` (override `actor_rollout_ref.actor."
        "use_rollout_log_probs=true`): with the present actor_rollout_ref.actor.tis_imp_ratio_cap",
        ["actor_rollout_ref.actor.use_rollout_log_probs=true"],
    ),
    (
        [f"{ACTOR}.policy_loss.loss_mode=cispo", f"{ACTOR}.clip_ratio_c=3"],
        f"`{ACTOR}.clip_ratio_c` (override `{ACTOR}.clip_ratio_c=3`): cispo bounds the weight",
        [f"{ACTOR}.policy_loss.loss_mode=gspo_turn", f"{ACTOR}.clip_ratio_c=3"],
    ),
    (
        [f"{ACTOR}.policy_loss.loss_mode=kl_cov", f"{ACTOR}.clip_ratio_c=3"],
        f"`{ACTOR}.clip_ratio_c` (override `{ACTOR}.clip_ratio_c=3`): kl_cov clips nothing",
        [f"{ACTOR}.policy_loss.loss_mode=clip_cov", f"{ACTOR}.clip_ratio_c=3"],
    ),
    (
        [f"{ACTOR}.policy_loss.loss_mode=clip_cov", f"{ACTOR}.policy_loss.clip_cov_lb=5"],
        "no covariance is above this and below clip_cov_ub",
        [f"{ACTOR}.policy_loss.loss_mode=clip_cov", f"{ACTOR}.policy_loss.clip_cov_lb=0"],
    ),
    (
        [f"{ACTOR}.entropy_ctrl.target=0.2", f"{ACTOR}.entropy_coeff=0.5"],
        f"`{ACTOR}.entropy_coeff` (override `{ACTOR}.entropy_coeff=0.5`): 0.5, where it begins, is "
        "above entropy_ctrl.max_coeff = 0.1",
        [f"{ACTOR}.entropy_ctrl.target=0.2", f"{ACTOR}.entropy_coeff=0.1"],
    ),
    (
        [f"{ACTOR}.entropy_ctrl.target=0.01", "trainer.guard.enable=true"],
        f"`{ACTOR}.entropy_ctrl.target` (override `{ACTOR}.entropy_ctrl.target=0.01`): 0.01 is not "
        "above trainer.guard.min_entropy = 0.01",
        [f"{ACTOR}.entropy_ctrl.target=0.02", "trainer.guard.enable=true"],
    ),
    (
        ["critic.warmup_epochs=4"],
        "`critic.warmup_epochs` (override `critic.warmup_epochs=4`): no iteration is the critic's",
        ["critic.warmup_epochs=4", "trainer.critic_warmup=1", "critic.cliprange_value=null"],
    ),
    (
        ["algorithm.overlong.buffer_len=200", "data.max_response_length=200"],
        "200 leaves no length without a penalty",
        ["algorithm.overlong.buffer_len=50", "data.max_response_length=200"],
    ),
    *(
        (
            ["rollout_manager.reward_placement=span", *wrong],
            f"`rollout_manager.reward_placement` (override "
            f"`rollout_manager.reward_placement=span`): {reason}",
            ["rollout_manager.reward_placement=span"],
        )
        for wrong, reason in (
            (
                ["algorithm.adv_estimator=turn_wise_gae", "critic.use_reward_mask=true"],
                "turn_wise_gae reads rewards at the ends of turns only; set it to turn_end",
            ),
            (["rollout_manager.use_multi_turn_reward=false"], "rollout_manager.use_multi_turn"),
            (
                [
                    "algorithm.reward_normalization.method=mean_std",
                    "algorithm.reward_normalization.grouping=batch",
                ],
                "algorithm.reward_normalization changes the rewards of whole turns",
            ),
        )
    ),
    (
        ["critic.enable=false"],
        "`critic.enable` (override `critic.enable=false`): bi_level_gae reads the critic's values",
        ["critic.enable=true"],
    ),
    (
        [*GRPO, "rollout_manager.n_trajectory=2", "critic.enable=true"],
        "`critic.enable` (override `critic.enable=true`): grpo reads no values",
        [*GRPO, "rollout_manager.n_trajectory=2", "critic.enable=false"],
    ),
    (
        ["algorithm.adv_estimator=turn_wise_gae"],
        "`critic.use_reward_mask`: turn_wise_gae has returns at the ends of turns only",
        ["algorithm.adv_estimator=turn_wise_gae", "critic.use_reward_mask=true"],
    ),
    (
        GRPO,
        "`rollout_manager.n_trajectory`: grpo compares trajectories of one level",
        [*GRPO, "rollout_manager.n_trajectory=2"],
    ),
    (
        ["algorithm.adv_estimator=gae"],
        "`rollout_manager.use_gae_mask`: gae runs over every token; set it to false, or take "
        "masked_gae",
        ["algorithm.adv_estimator=gae", "rollout_manager.use_gae_mask=false"],
    ),
    (
        ["algorithm.adv_estimator=masked_gae", "rollout_manager.use_gae_mask=false"],
        "masked_gae runs over sampled tokens only; set it to true, or take gae",
        ["algorithm.adv_estimator=masked_gae"],
    ),
    (
        ["algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.kl_coef=0"],
        "the adaptive controller multiplies it",
        ["algorithm.kl_ctrl.type=adaptive"],
    ),
    (
        [*GRPO, "rollout_manager.n_trajectory=2", "critic.model.lora_rank=8"],
        "`critic.model.lora_rank` (override `critic.model.lora_rank=8`): there is no critic to get "
        "adapters; set it to 0",
        ["critic.model.lora_rank=8"],
    ),
    (
        ["actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.target_modules=[]"],
        "`actor_rollout_ref.model.target_modules` (override "
        "`actor_rollout_ref.model.target_modules=[]`): no layer would get an adapter; name some",
        ["actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.target_modules=[q_proj]"],
    ),
    (
        ["trainer.guard.min_reward_std_factor=0.2"],
        "a group of one trajectory has no variance",
        ["trainer.guard.min_reward_std_factor=0.2", "rollout_manager.n_trajectory=2"],
    ),
    (
        ["trainer.early_stop.min_reward_variance=0.1"],
        "`trainer.early_stop.min_reward_variance` (override "
        "`trainer.early_stop.min_reward_variance=0.1`): a group of one trajectory has no variance",
        ["trainer.early_stop.min_reward_variance=0.1", "rollout_manager.n_trajectory=2"],
    ),
    (
        ["trainer.early_stop.min_val_success=0.01"],
        "nothing is validated; set trainer.test_freq",
        ["trainer.early_stop.min_val_success=0.01", "trainer.test_freq=10"],
    ),
    (
        ["trainer.template_collapse_freq=5", "trainer.template_collapse_samples=1"],
        "the measure compares a response's prompt with other prompts",
        ["trainer.template_collapse_freq=5", "trainer.template_collapse_samples=2"],
    ),
    (
        ["algorithm.reward_normalization.method=mean"],
        "`algorithm.reward_normalization.grouping`: the only trajectory of a level is its own mean",
        [
            "algorithm.reward_normalization.method=mean",
            "algorithm.reward_normalization.grouping=batch",
        ],
    ),
    (
        ["algorithm.rollout_filter.strategy=top_p"],
        "`algorithm.rollout_filter.strategy` (override `algorithm.rollout_filter.strategy=top_p`): "
        "it compares the trajectories of one level",
        ["algorithm.rollout_filter.strategy=top_p", "rollout_manager.n_trajectory=2"],
    ),
    (
        ["algorithm.adv_estimator=no_concat_gae", "critic.use_reward_mask=true"],
        "`critic.use_reward_mask` (override `critic.use_reward_mask=true`): no_concat_gae has "
        "returns at the first tokens of turns",
        ["algorithm.adv_estimator=no_concat_gae_last", "critic.use_reward_mask=true"],
    ),
    (
        ["algorithm.adv_estimator=no_concat_gae_last"],
        "`critic.use_reward_mask`: no_concat_gae_last has returns at the ends of turns only",
        ["algorithm.adv_estimator=no_concat_gae"],
    ),
    (
        ["algorithm.adv_estimator=gigpo"],
        "`rollout_manager.n_trajectory`: gigpo compares trajectories of one level",
        ["algorithm.adv_estimator=gigpo", "rollout_manager.n_trajectory=2"],
    ),
    (
        [
            "algorithm.adv_estimator=gae",
            "rollout_manager.use_gae_mask=false",
            "rollout_manager.context=no_concat",
        ],
        "`rollout_manager.context` (override `rollout_manager.context=no_concat`): gae needs a "
        "trajectory in one row, no_concat makes several",
        ["algorithm.adv_estimator=masked_gae", "rollout_manager.context=no_concat"],
    ),
    (
        [
            "algorithm.adv_estimator=brpo",
            "data.train_batch_size=1",
            "actor_rollout_ref.actor.ppo_mini_batch_size=1",
        ],
        "`data.train_batch_size` (override `data.train_batch_size=1`): brpo compares",
        [
            "algorithm.adv_estimator=arpo",
            "data.train_batch_size=1",
            "actor_rollout_ref.actor.ppo_mini_batch_size=1",
        ],
    ),
    (
        ["algorithm.adv_estimator=adaptive_credit", "algorithm.high_level_lam=0.9"],
        "`algorithm.high_level_lam` (override `algorithm.high_level_lam=0.9`): adaptive_credit "
        "chooses the lambda of each turn itself",
        [
            "algorithm.adv_estimator=adaptive_credit",
            "algorithm.high_level_lam=0.9",
            "algorithm.adaptive_credit.mode=gamma",
        ],
    ),
    (
        [
            "algorithm.adv_estimator=adaptive_credit",
            "algorithm.adaptive_credit.mode=gamma",
            "algorithm.high_level_gamma=1.0",
        ],
        "1.0 is the discount at average progress; it must lie between 0.85 and 0.995",
        ["algorithm.adv_estimator=adaptive_credit", "algorithm.high_level_gamma=1.0"],
    ),
    (
        ["rollout_manager.window_size=5"],
        "`rollout_manager.window_size` (override `rollout_manager.window_size=5`): context = "
        "concat has no window",
        ["rollout_manager.window_size=null"],
    ),
    (
        ["rollout_manager.context=window"],
        "`rollout_manager.window_size`: context = window needs the number of turns",
        ["rollout_manager.context=window", "rollout_manager.window_size=2"],
    ),
    (
        ["rollout_manager.context=compact"],
        "`rollout_manager.window_size`: context = compact needs the number of turns",
        ["rollout_manager.context=compact", "rollout_manager.window_size=2"],
    ),
    (
        ["rollout_manager.context=gate"],
        "`rollout_manager.window_size`: context = gate needs the number of turns",
        ["rollout_manager.context=gate", "rollout_manager.window_size=2"],
    ),
    (
        ["rollout_manager.keep_cost=0.1"],
        "context = concat lets the policy drop nothing",
        [
            "rollout_manager.keep_cost=0.1",
            "rollout_manager.context=gate",
            "rollout_manager.window_size=2",
        ],
    ),
    (
        ["rollout_manager.thinking_budget=64", "data.max_response_length=64"],
        "64 tokens of thought leave none of data.max_response_length = 64 for the answer",
        ["rollout_manager.thinking_budget=63", "data.max_response_length=64"],
    ),
    (
        ["rollout_manager.context=no_concat", "rollout_manager.window_size=1"],
        "context = no_concat has no window; set it to null",
        ["rollout_manager.context=no_concat"],
    ),
    (
        ["actor_rollout_ref.rollout.temperature=0"],
        "greedy training episodes explore nothing",
        ["actor_rollout_ref.rollout.val_kwargs.temperature=0"],
    ),
    (
        ["actor_rollout_ref.actor.ppo_mini_batch_size=129"],
        "129 is more than the 128 trajectories of an iteration",
        ["actor_rollout_ref.actor.ppo_mini_batch_size=128"],
    ),
    (
        ["actor_rollout_ref.actor.ppo_max_token_len=2399"],
        "2399 cannot hold one trajectory of data.max_trajectory_length = 2400 tokens",
        ["actor_rollout_ref.actor.ppo_max_token_len=2400"],
    ),
    (
        [*GRPO, "rollout_manager.n_trajectory=2", "trainer.critic_warmup=1"],
        "`trainer.critic_warmup` (override `trainer.critic_warmup=1`): there is no critic",
        [*GRPO, "rollout_manager.n_trajectory=2"],
    ),
    (
        ["trainer.critic_warmup=40"],
        "the policy would never learn in trainer.total_training_steps = 40 iterations",
        ["trainer.critic_warmup=39"],
    ),
    (
        ["judge.observation_weight=0", "judge.prediction_weight=0"],
        "`judge.use_state_reward`: both weights are 0",
        ["judge.observation_weight=0"],
    ),
    (
        ["envs.lake.env_config.prompt_format=free_think"],
        "free_think has no <observation> or <prediction> section for judge.use_state_reward",
        ["envs.lake.env_config.prompt_format=free_think", "judge.use_state_reward=false"],
    ),
    (
        ["envs.lake.env_config.prompt_format=grounding", "judge.observation_weight=0"],
        "grounding has no <prediction> section",
        ["envs.lake.env_config.prompt_format=worldmodeling", "judge.observation_weight=0"],
    ),
    (
        ["data.max_trajectory_length=1223"],
        "1223 cannot hold the first turn: data.max_prompt_length + data.max_response_length = 1224",
        ["data.max_trajectory_length=1224"],
    ),
    (
        ["envs.lake.train_size=127"],
        "`data.train_batch_size`: 128 is more than the 127 training levels",
        ["envs.lake.train_size=128"],
    ),
    (
        ["algorithm.adv_estimator=remax"],
        "the greedy episode that remax subtracts is not judged",
        REMAX,
    ),
    (
        [
            *REMAX,
            "algorithm.reward_normalization.method=mean",
            "algorithm.reward_normalization.grouping=batch",
        ],
        "remax subtracts the score of a greedy episode, which is not normalised",
        REMAX,
    ),
]


@pytest.mark.parametrize(("wrong", "message", "right"), CASES, ids=[case[1][:40] for case in CASES])
def test_impossible_combinations_are_refused_with_the_reason(
    experiment: Path, wrong: list[str], message: str, right: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_experiment(experiment, wrong)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1, "one mistake, one line"
    load_experiment(experiment, right)


def test_several_reasons_are_told_at_once(experiment: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_experiment(experiment, ["critic.enable=false", "rollout_manager.window_size=2"])
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    "overrides",
    [
        [*GRPO, "rollout_manager.n_trajectory=2", "algorithm.truncation_bootstrap=true"],
        ["actor_rollout_ref.actor.use_kl_loss=true"],
        ["actor_rollout_ref.actor.use_kl_loss=true", "algorithm.kl_ctrl.kl_coef=0"],
        ["rollout_manager.use_loss_mask=false"],
        ["rollout_manager.use_multi_turn_reward=false"],
    ],
)
def test_unusual_combinations_that_work_are_let_through(
    experiment: Path, overrides: list[str]
) -> None:
    load_experiment(experiment, overrides)


def test_what_a_configuration_needs(experiment: Path) -> None:
    config = load_experiment(experiment)
    assert has_critic(config)
    assert has_reference(config)
    assert trajectories_per_iteration(config) == 128
    group = load_experiment(
        experiment, [*GRPO, "rollout_manager.n_trajectory=8", "algorithm.kl_ctrl.kl_coef=0"]
    )
    assert not has_critic(group)
    assert not has_reference(group)
    assert trajectories_per_iteration(group) == 1024
    assert has_reference(
        load_experiment(
            experiment, ["algorithm.kl_ctrl.kl_coef=0", "actor_rollout_ref.actor.use_kl_loss=true"]
        )
    )


def test_random_moves_need_actions_to_draw_from() -> None:
    load_experiment("svg-tiny", ["warm_start.random_moves=0.5"])
    with pytest.raises(ConfigError, match=r"warm_start.random_moves.*: Household \(`envs.*neither"):
        load_experiment("household-tiny", ["warm_start.random_moves=0.5"])
