"""What options of verl, VAGEN, RAGEN and verl-agent are called here."""

_MODEL, _ACTOR, _ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("model", "actor", "rollout"))
_EXTRA = "an option of verl's that this has no name for goes through `infra.verl.extra`"
_MICRO = "micro batches are filled by tokens: `{}`, with infra.engine=verl `infra.verl.{}`".format(
    f"{_ACTOR}.ppo_max_token_len", "max_token_len_per_gpu"
)
_LEVELS = "levels are drawn by the environments: `envs.<id>.train_size`, `val_size`, `test_size`"
_TURNS = "`rollout_manager.max_turns`"
_SERVICE = "where environments run is `infra.environments.placement`"
_RESUME = "`vagen resume RUN` goes on with a run"
_REWARD = (
    "rewards are the environment's (`envs.<id>.env_config.reward`) and the judge's "
    "(`judge.use_state_reward`)"
)
_FILTER = "`algorithm.rollout_filter.{}`"
_KEPT = "checkpoints that nothing needs any more are removed; of episodes `trainer.keep_iterations`"
_VIEW = "`vagen view RUN` shows every episode"
_NO_ROOM = "an episode whose next turn does not fit is truncated"
_INVALID = "`envs.<id>.env_config.reward_overrides`: {format_penalty: -0.1}"
_PER_ROW = f"`{_ACTOR}.loss_agg_mode`: seq-mean-token-mean is the same loss"
_ANALYSED = ("mode", "every", "env_groups", "group_size", "log_prefilter", "only")
_ANALYSIS = "gradients are not divided by terms of the loss: leave it out"
_WARMUP = "a number of iterations: `{}.optim.lr_warmup_steps`"
_OFFLOAD = {
    f"fsdp_config.{name}": f"`infra.verl.{name}`"
    for name in ("param_offload", "optimizer_offload", "fsdp_size")
}
_BATCHES = {
    f"{kind}{suffix}": _MICRO
    for kind in ("ppo_micro_batch_size", "log_prob_micro_batch_size", "forward_micro_batch_size")
    for suffix in ("", "_per_gpu")
} | {
    f"{kind}_max_token_len_per_gpu": "`infra.verl.max_token_len_per_gpu`"
    for kind in ("ppo", "log_prob", "forward")
}
_NETWORK = {
    **_BATCHES,
    **_OFFLOAD,
    "use_dynamic_bsz": _MICRO,
    "entropy_from_logits_with_chunking": _EXTRA,
    "log_prob_use_dynamic_bsz": _MICRO,
    "strategy": "it is FSDP with infra.engine=verl",
    "shuffle": "trajectories are always shuffled",
    "ulysses_sequence_parallel_size": _EXTRA,
    "checkpoint": "`infra.save_freq`; a checkpoint holds all that resuming needs",
}


def _below(prefix: str, names: dict[str, str]) -> dict[str, str]:
    return {f"{prefix}.{name}": meaning for name, meaning in names.items()}


FOREIGN: dict[str, str] = {
    # verl
    "data.train_files": _LEVELS,
    "data.val_files": _LEVELS,
    "data.val_batch_size": "all of `envs.<id>.val_size` are played",
    "data.gen_batch_size": "`data.train_batch_size`, and for dynamic sampling "
    "`algorithm.filter_groups.max_num_gen_batches`",
    "data.shuffle": "levels are drawn by `seed`",
    "data.filter_overlong_prompts": _NO_ROOM,
    "data.truncation": _NO_ROOM,
    "data.image_key": "observations come from `envs`",
    "data.return_raw_chat": "observations come from `envs`",
    "data.seed": "`seed`",
    **_below(
        _MODEL,
        {
            "enable_gradient_checkpointing": "`infra.verl.gradient_checkpointing`",
            "use_remove_padding": "padding is always removed",
            "use_fused_kernels": _EXTRA,
            "trust_remote_code": "code of a model's repository is never run",
            "use_shm": _EXTRA,
        },
    ),
    **_below(_ACTOR, _NETWORK),
    **_below(
        _ACTOR,
        {
            "clip_ratio": f"`{_ACTOR}.clip_ratio_low` and `{_ACTOR}.clip_ratio_high`",
            "kl_coef": "`algorithm.kl_ctrl.kl_coef`, or as a loss "
            f"`{_ACTOR}.use_kl_loss` and `{_ACTOR}.kl_loss_coef`",
            "optim.lr_warmup_steps_ratio": _WARMUP.format(_ACTOR),
            "optim.warmup_style": f"`{_ACTOR}.optim.lr_scheduler_type`",
            "optim.total_training_steps": "`trainer.total_training_steps`",
            "optim.clip_grad": f"`{_ACTOR}.grad_clip`",
            "use_torch_compile": _EXTRA,
            "use_ref": f"there is a reference if `{_ACTOR}.use_kl_loss` or "
            "`algorithm.kl_ctrl.kl_coef` needs one",
            "filter_loss_scaling": _FILTER.format("loss_scaling"),
            "grpo_advantage_length_weight": _PER_ROW,
            "use_invalid_action_penalty": _INVALID,
            "invalid_action_penalty_coef": _INVALID,
        },
    ),
    "actor_rollout_ref.ref": "the reference is laid out as the actor: `infra.verl.param_offload`, "
    "`infra.verl.max_token_len_per_gpu`",
    "actor_rollout_ref.hybrid_engine": "`infra.verl.rollout_gpus` only play; with 0 all do both",
    **_below(_ROLLOUT, _BATCHES),
    **_below(
        _ROLLOUT,
        {
            "n": "`rollout_manager.n_trajectory`",
            "name": "`infra.verl.rollout`",
            "mode": "conversations are always played side by side",
            "dtype": "`infra.dtype`",
            "prompt_length": "`data.max_prompt_length`",
            "response_length": "`data.max_response_length`, of one turn",
            "max_model_len": "`data.max_trajectory_length`",
            "max_num_seqs": f"`{_ROLLOUT}.max_concurrency`",
            "max_num_batched_tokens": _EXTRA,
            "tensor_model_parallel_size": "`infra.verl.tensor_model_parallel_size`",
            "gpu_memory_utilization": "`infra.verl.gpu_memory_utilization`",
            "do_sample": f"`{_ROLLOUT}.temperature`, above 0 in training",
            "val_kwargs.do_sample": f"`{_ROLLOUT}.val_kwargs.temperature`; 0 is greedy",
            "calculate_log_probs": "they always are",
            "enforce_eager": _EXTRA,
            "free_cache_engine": _EXTRA,
            "enable_chunked_prefill": _EXTRA,
            "load_format": _EXTRA,
            "engine_kwargs": _EXTRA,
            "multi_turn.enable": f"episodes always have turns: {_TURNS}",
            "multi_turn": _TURNS,
            "agent.num_workers": "`infra.verl.agent_workers`",
            "agent": "`infra.verl.agent_workers`",
            "rollout_filter_ratio": _FILTER.format("value"),
            "rollout_filter_value": _FILTER.format("value"),
            "rollout_filter_strategy": _FILTER.format("strategy"),
            "rollout_filter_type": f"{_FILTER.format('strategy')}; it keeps the largest deviations",
            "rollout_filter_metric": "it is the deviation of a group's scores",
            "rollout_filter_selection_eps": "it is 0",
            "rollout_filter_empty_stop_steps": "`trainer.early_stop.empty_batches`",
            "rollout_filter_include_zero": _FILTER.format("include_zero"),
            "rollout_filter_top_p_prob_mode": _FILTER.format("top_p_prob_mode"),
            "gradient_analysis_num_buckets": _ANALYSIS,
            "gradient_analysis_bucket_mode": _ANALYSIS,
            "disable_log_stats": _EXTRA,
            "layered_summon": _EXTRA,
        },
    ),
    **_below("critic", _NETWORK),
    **_below("critic.fsdp", {k.removeprefix("fsdp_config."): v for k, v in _OFFLOAD.items()}),
    "critic.model.path": f"the critic starts from the policy's weights: `{_MODEL}.path`",
    "critic.model.enable_gradient_checkpointing": "`infra.verl.gradient_checkpointing`",
    "critic.model.use_remove_padding": "padding is always removed",
    "critic.optim.lr_warmup_steps_ratio": _WARMUP.format("critic"),
    "critic.optim.warmup_style": "`critic.optim.lr_scheduler_type`",
    **_below("critic.model", _OFFLOAD),
    "algorithm.use_kl_in_reward": "`algorithm.kl_ctrl.kl_coef`; 0 is off",
    "algorithm.kl_penalty": "in the reward it is k1 (`algorithm.kl_ctrl.kl_coef`); as a loss "
    f"`{_ACTOR}.kl_loss_type`",
    "algorithm.norm_adv_by_std_in_grpo": "`algorithm.adv_estimator=rloo` does not divide by it",
    "algorithm.filter_groups.enable": "`algorithm.filter_groups.max_num_gen_batches` above 1",
    "algorithm.rollout_is": f"`{_ACTOR}.tis_imp_ratio_cap`",
    "algorithm.rollout_correction": f"`{_ACTOR}.tis_imp_ratio_cap`",
    "trainer.nnodes": "`infra.verl.nnodes`",
    "trainer.n_gpus_per_node": "`infra.verl.n_gpus_per_node`",
    "trainer.total_epochs": "`trainer.total_training_steps`, in iterations",
    "trainer.save_freq": "`infra.save_freq`",
    "trainer.resume_mode": _RESUME,
    "trainer.resume_from_path": _RESUME,
    "trainer.logger": "MLflow is always told; `infra.trackers` are others",
    "trainer.experiment_name": "`name`",
    "trainer.default_local_dir": "`infra.output_dir`",
    "trainer.val_before_train": "the policy is always tested before it trains",
    "trainer.val_only": "`vagen eval RUN` measures a policy",
    "trainer.log_val_generations": _VIEW,
    "trainer.val_generations_to_log_to_wandb": _VIEW,
    "trainer.rollout_data_dir": "`vagen view RUN` shows every episode, from the run's folder",
    "trainer.validation_data_dir": "`vagen view RUN` shows every episode, from the run's folder",
    "trainer.max_actor_ckpt_to_keep": _KEPT,
    "trainer.max_critic_ckpt_to_keep": _KEPT,
    "trainer.balance_batch": _EXTRA,
    "trainer.device": "`infra.device`",
    "ray_init": "`infra.verl.ray_address`",
    "ray_kwargs": "`infra.verl.ray_address`",
    "reward_model": _REWARD,
    "custom_reward_function": _REWARD,
    "global_profiler": "`infra.profile_iteration`",
    # VAGEN
    "rollout_manager.base_url": f"{_SERVICE}: `infra.environments.url`",
    "rollout_manager.use_service": _SERVICE,
    "rollout_manager.timeout": "`infra.environments.answer_seconds`",
    "rollout_manager.mini_batch_size": f"`{_ROLLOUT}.max_concurrency`",
    "server": f"{_SERVICE}: `infra.environments.url`",
    "algorithm.high_level_lambda": "`algorithm.high_level_lam`",
    "algorithm.gamma_turn": "`algorithm.high_level_gamma`",
    "algorithm.lambda_turn": "`algorithm.high_level_lam`",
    "algorithm.lambda_token": "`algorithm.lam`",
    "trainer.harness": "`rollout_manager.context`",
    "trainer.concat_multi_turn": "`rollout_manager.context`, concat or no_concat",
    "trainer.compact_budget": "`rollout_manager.compact_budget`",
    "trainer.compact_summary_budget": "a summary is an answer: `data.max_response_length`",
    "trainer.state_reward": "`judge.use_state_reward`, `judge.observation_weight`, "
    "`judge.prediction_weight`",
    "trainer.log_image": "`vagen view RUN` shows every frame",
    "trainer.model_adapter": "models are told apart by their configuration",
    "filter.enable": _FILTER.format("strategy"),
    "filter.name": _FILTER.format("strategy"),
    "filter.filter_kwargs": _FILTER.format("value"),
    "huggingface_hub": "`vagen export` writes a model's directory",
    "data.custom_cls": _LEVELS,
    "data.apply_chat_template_kwargs": "the model's chat template decides on thoughts",
    "n_envs": "`envs.<id>.train_size`",
    "max_turns": _TURNS,
    "response_length_per_turn": "`data.max_response_length`",
    "thinking_token_budget": "`rollout_manager.thinking_budget`",
    # RAGEN
    "agent_proxy.max_turn": _TURNS,
    "agent_proxy.max_actions_per_turn": "`envs.<id>.env_config.max_actions_per_step`",
    "agent_proxy.action_sep": "`envs.<id>.env_config.action_sep`",
    "agent_proxy.enable_think": "`envs.<id>.env_config.prompt_format`: free_think or no_think",
    "agent_proxy.use_turn_scores": "`rollout_manager.use_multi_turn_reward`",
    "agent_proxy.max_context_window": "`rollout_manager.window_size`, with "
    "`rollout_manager.context`=window",
    "agent_proxy.context_window_mode": "`rollout_manager.context`",
    "agent_proxy.reward_normalization.method": "`algorithm.reward_normalization.method`",
    "agent_proxy.reward_normalization.grouping": "`algorithm.reward_normalization.grouping`",
    "agent_proxy": _TURNS,
    "es_manager.train.env_groups": "`data.train_batch_size`",
    "es_manager.train.group_size": "`rollout_manager.n_trajectory`",
    "es_manager.val.env_groups": "`envs.<id>.val_size`",
    "es_manager.val.group_size": f"`{_ROLLOUT}.val_kwargs.n`",
    "es_manager.format_penalty": _INVALID,
    "es_manager": "environments are in `envs`, `data.train_batch_size` levels are played "
    "`rollout_manager.n_trajectory` times each",
    "ctx_manager": f"answers are sampled by `{_ROLLOUT}.temperature`, `{_ROLLOUT}.top_p`, "
    f"`{_ROLLOUT}.top_k` and `data.max_response_length`",
    "custom_envs": "environments are in `envs`, their options in `envs.<id>.env_config`",
    "algorithm.bi_level_gae": "`algorithm.adv_estimator=bi_level_gae`",
    "algorithm.soft_advantage_reweight": "`algorithm.rollout_filter` drops levels instead",
    "algorithm.zero_task_advantage": "`algorithm.adv_estimator`: advantages are always used",
    "grpo_advantage_length_weight": _PER_ROW,
    "trainer.local_log_dir": "`infra.output_dir`",
    "trainer.validation_steps": "`envs.<id>.val_size`",
    "trainer.generations_to_log_to_wandb": _VIEW,
    "trainer.log_group_rv_table": _VIEW,
    **dict.fromkeys(
        (
            *(f"trainer.gradient_analysis_{name}" for name in _ANALYSED),
            "trainer.exit_after_gradient_analysis",
        ),
        _ANALYSIS,
    ),
    "model.path": f"`{_MODEL}.path`",
    "model_path": f"`{_MODEL}.path`",
    "lora.rank": f"`{_MODEL}.lora_rank`",
    "lora.alpha": f"`{_MODEL}.lora_alpha`",
    "lora.target_modules": f"`{_MODEL}.target_modules`",
    "micro_batch_size_per_gpu": _MICRO,
    "log_prob_micro_batch_size_per_gpu": _MICRO,
    "ppo_mini_batch_size": f"`{_ACTOR}.ppo_mini_batch_size`",
    "enable_response_mask": "`rollout_manager.use_loss_mask`",
    "system.CUDA_VISIBLE_DEVICES": "`infra.device`, or the environment variable itself",
    "collapse_detection": "`trainer.template_collapse_freq`",
    # verl-agent
    "algorithm.gigpo.step_advantage_w": "`algorithm.gigpo.step_advantage_weight`",
    "algorithm.gigpo.mode": "`algorithm.gigpo.normalization`, mean or mean_std",
    "algorithm.gigpo.enable_similarity": "turns are compared that start from equal states",
    "algorithm.gigpo.similarity_thresh": "turns are compared that start from equal states",
    "env.env_name": "`envs.<id>.env_name`",
    "env.seed": "`seed`",
    "env.max_steps": _TURNS,
    "env.history_length": "`rollout_manager.window_size`, one larger, with "
    "`rollout_manager.context`=window",
    "env.rollout.n": "`rollout_manager.n_trajectory`",
    "env.resources_per_worker": "`infra.environments.workers`",
    "env.sokoban.mode": "`envs.<id>.env_config.render_mode`",
    "env.sokoban.search_depth": "`envs.<id>.env_config`: min_solution_length, max_solution_length",
    "env": "options of an environment are in `envs.<id>.env_config`",
    # earlier versions
    "s3.ca_bundle": "AWS_CA_BUNDLE names a file of trusted certificates",
}
"""Option there, and what does its job here. Whole sections stand for all their options."""


def native(path: tuple[str, ...]) -> str | None:
    """Our replacement of an unknown option; None if there is none.

    Shortened names are found too: `rollout.n` is `actor_rollout_ref.rollout.n`.
    """
    for length in range(len(path), 0, -1):
        name = ".".join(path[:length])
        if name in FOREIGN:
            return FOREIGN[name]
        found = [key for key in FOREIGN if "." in name and key.endswith(f".{name}")]
        if found:
            return FOREIGN[found[0]]
    return None
