"""Declares every metric that a training logs: meaning, unit, and where it is shown.

Terminal, learning curves, guard, alarm and early stopping use this table, and `make docs`
generates the page. To log a new metric, declare it here and return
it from its step.
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from vagen.panels import (
    ANSWERS_PANEL,
    CLIP_PANEL,
    CUT_PANEL,
    ENTROPY_PANEL,
    EXPLAINED_PANEL,
    GRADIENT_PANEL,
    JUDGE_PANEL,
    KL_PANEL,
    SCORE_PANEL,
    SUCCESS_PANEL,
    TURNS_PANEL,
    VALUE_LOSS_PANEL,
    Panel,
)

SUCCESS = "train/success"
ACTION_IS_VALID = "train/action_is_valid"
REWARD_STD = "rollout/reward_std"
REWARD_VARIANCE = "rollout/reward_variance"
TOKENS = "rollout/tokens"
JUDGE_SCORES = ("judge/observation", "judge/prediction")
RATIO_MEAN = "rollout/ratio_mean"
PROBABILITY_CORRELATION = "rollout/probability_correlation"
UPDATE_KL = "actor/update_kl"
PPO_KL = "actor/ppo_kl"
ENTROPY = "actor/entropy"
ENTROPY_COEFF = "actor/entropy_coeff"
GRAD_NORM = ("actor/grad_norm", "critic/grad_norm")
LOSSES = ("actor/loss", "critic/loss")
STEP_SECONDS = "timing_s/<step>"

_CRITIC = "the estimator has a critic"
_JUDGE = "`judge.use_state_reward`"
_GROUPS = "a level is played more than once (`rollout_manager.n_trajectory`)"
_PARTIAL = "`rollout_manager.over_sampling_batch_size`"
_CURRICULUM = "`data.curriculum.enable`"
_GATE = "`rollout_manager.context=gate`"
_THOUGHTS = "the model writes thoughts"
_SEVERAL = "there are several environments"
_GPU = "it runs on GPUs"
_VERL_GPU = "`infra.engine=verl`, and verl knows the GPU"
_ALARM = "there are `judge.alarm.window` iterations"
_COLLAPSE = "`trainer.template_collapse_freq`"
_VALUES = {"split": "train|val|test", "section": "observation|prediction"}
"""Meaning of variable parts of names; other variables match one part of any kind."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric; the example is `Metric("actor/lr", "1", "Learning rate of the policy.")`."""

    name: str
    """The logged name; `<env>` etc. are variable parts."""
    unit: str
    meaning: str
    when: str = ""
    """Condition; empty if every learning iteration logs it."""
    better: Literal["", "up", "down"] = ""
    """Direction of improvement, if there is one."""
    short: str = ""
    """Its name on the terminal; empty to hide it."""
    panel: Panel | None = None
    """The learning curve that shows it."""

    def matches(self, name: str) -> bool:
        """Whether a logged name matches this metric."""
        return _pattern(self.name).fullmatch(name) is not None


# fmt: off
STEPS: dict[str, tuple[Metric, ...]] = {
    "build": (
        Metric("build/<env>/<split>", "levels", "Distinct levels of a split."),
    ),
    "warm_start": (
        Metric("warm_start/steps", "steps", "Optimizer steps on expert episodes or conversations.",
               "`warm_start.steps`"),
        Metric("warm_start/loss", "nats per token",
               "Cross-entropy of the experts' tokens, mean of the last steps.",
               "`warm_start.steps`", "down", "loss"),
        Metric("warm_start/too_long", "conversations",
               "Left out, since they exceed a length of `data`.", "`warm_start.data`"),
    ),
    "rollout": (
        Metric("<split>/success", "share of episodes", "Episodes that reached their goal.",
               better="up", short="success", panel=SUCCESS_PANEL),
        Metric("<split>/score", "per episode",
               "Sum of environment rewards, including the format reward.", better="up",
               short="score", panel=SCORE_PANEL),
        Metric("<split>/turns", "turns", "Turns per episode.", panel=TURNS_PANEL),
        Metric("<split>/format_correct", "share of turns",
               "Responses in the required layout.", better="up", short="format",
               panel=ANSWERS_PANEL),
        Metric("<split>/action_is_valid", "share of turns",
               "Responses with valid actions only.", better="up", short="valid",
               panel=ANSWERS_PANEL),
        Metric("<split>/action_is_effective", "share of turns", "Responses that changed the state.",
               better="up", panel=ANSWERS_PANEL),
        Metric("<split>/response_length", "tokens", "Sampled tokens per turn."),
        Metric("<split>/length_cut", "share of turns",
               "Responses truncated at `max_response_length`.",
               panel=CUT_PANEL),
        Metric("<split>/thought_length", "tokens",
               "Sampled tokens per thought.", _THOUGHTS),
        Metric("<split>/thought_cut", "share of turns",
               "Responses whose thought `rollout_manager.thinking_budget` closed.", _THOUGHTS),
        Metric("<split>/truncated", "share of episodes", "Episodes ended by a limit.",
               panel=CUT_PANEL),
        Metric("<split>/truncated_tokens", "share of episodes",
               "Episodes ended by the token limit.", panel=CUT_PANEL),
        Metric("<split>/env_error", "episodes",
               "Episodes ended by an environment failure; not in means.",
               better="down"),
        Metric("<split>/observations_kept", "share of turns",
               "Responses that keep the observation before them.", _GATE),
        Metric("<split>/context_saved", "share of tokens",
               "Context tokens saved by dropping observations.", _GATE),
        Metric("<split>/success/<env>", "share of episodes", "Success in one environment.",
               _SEVERAL, "up", panel=SUCCESS_PANEL),
        Metric("<split>/score/<env>", "per episode", "Score in one environment.", _SEVERAL, "up",
               panel=SCORE_PANEL),
        Metric("<split>/<metric>/<env>", "as `<split>/<metric>`",
               "Any other metric of this table in one environment.", _SEVERAL),
        Metric(TOKENS, "tokens", "Sampled tokens of all episodes."),
        Metric(REWARD_VARIANCE, "score squared", "Variance of scores in a group, mean over groups.",
               _GROUPS),
        Metric("rollout/baseline_score", "per episode",
               "Score of the greedy episodes, the baseline of `remax`.", "`remax`"),
        Metric("rollout/baseline_missing", "episodes",
               "Greedy episodes that failed in their environment.", "`remax`", "down"),
        Metric("rollout/carried", "share of episodes",
               "Episodes started in an earlier iteration.", _PARTIAL),
        Metric("rollout/staleness", "updates",
               "Updates between the weights that sampled a token and those that learn from it.",
               _PARTIAL),
        Metric("rollout/staleness_max", "updates", "Maximum of `rollout/staleness`.", _PARTIAL),
        Metric("curriculum/difficulty/<env>", "as the environment's `difficulty`",
               "Mean over played levels; on grids, moves of a shortest solution.", _CURRICULUM),
        Metric("curriculum/share/<env>/<bucket>", "share of episodes",
               "Levels of a difficulty bucket; 0 is the easiest.", _CURRICULUM),
        Metric("curriculum/success/<env>/<bucket>", "share of episodes",
               "Estimated success in a bucket, used by the next draws.", _CURRICULUM, "up"),
        Metric("rollout/groups_played", "groups",
               "Groups played until enough of them varied.",
               "`algorithm.filter_groups`", "down"),
    ),
    "judge": (
        Metric("judge/observation", "0 to 1", "Score of the agent's descriptions.", _JUDGE,
               "up", "observation", JUDGE_PANEL),
        Metric("judge/prediction", "0 to 1", "Score of the agent's predictions.", _JUDGE,
               "up", "prediction", JUDGE_PANEL),
        Metric("judge/judged_share", "share of turns", "Judged turns, without summaries.",
               _JUDGE),
        Metric("judge/<section>_missing", "verdicts", "Judged turns without a score.", _JUDGE),
        Metric("judge/flagged", "per judged turn", "Statements rejected by a gate.", _JUDGE,
               panel=JUDGE_PANEL),
        Metric("judge/blind_<section>", "0 to 1",
               "Score of the best constant text, which has no reward.",
               "`judge.above_chance`"),
        Metric("judge/weight_factor", "1", "Factor of schedule and cap on the judge's weights.",
               _JUDGE),
        Metric("judge/absent_share", "share of verdicts", "Missing verdicts.", _JUDGE,
               "down"),
        Metric("judge/absent/<reason>", "verdicts",
               "Missing verdicts by reason.", "some are missing", "down"),
        Metric("judge/decided_by_<judge>", "share of verdicts",
               "Verdicts decided by this part of a composed judge.", "the judge is composed"),
        Metric("judge/kappa", "at most 1", "Cohen's kappa of the two judges.", "`judge.second`",
               "up"),
        Metric("judge/kappa_statements", "statements",
               "Number of statements in `judge/kappa`.", "`judge.second`"),
        Metric("judge/information", "score",
               "Score minus the text's mean score for states of other episodes.",
               "`judge.information.enable`", "up"),
        Metric("judge/repetition_charge", "score",
               "Deduction for texts repeated in other states.",
               "`judge.repetition.enable`", "down"),
        Metric("judge/refused_repeats", "share of statements",
               "Among the most frequent texts, and mostly wrong.",
               "`judge.repetition.top_k`", "down"),
        Metric("judge/not_compared", "statements",
               "Statements that the rules cannot compare with other states.",
               "`judge.information.enable` or `judge.repetition.enable`", "down"),
        Metric("judge/alarm", "0 or 1", "Whether the judge's scores rise while success falls.",
               _ALARM, "down"),
        Metric("judge/alarm_rise", "score", "Rise of the judge's mean score over the window.",
               _ALARM),
        Metric("judge/alarm_fall", "share of episodes", "Fall of success over the window.",
               _ALARM),
        Metric("judge/success_correlation", "-1 to 1",
               "Pearson correlation of judge scores and success over the window.",
               _ALARM),
        *(
            Metric(f"judge/llm_{name}", unit, meaning, "a language model judges")
            for name, unit, meaning in (
                ("requests", "requests", "Requests sent, including retries."),
                ("answers", "requests", "Requests that were answered."),
                ("failures", "requests", "Requests that failed."),
                ("prompt_tokens", "tokens", "Tokens of all prompts."),
                ("completion_tokens", "tokens", "Tokens of all answers."),
                ("breaks", "times", "Number of times that the circuit breaker opened."),
            )
        ),
    ),
    "advantage": (
        Metric(REWARD_STD, "score", "Deviation of scores in a group, mean over groups.", _GROUPS),
        Metric("rollout/zero_std_groups", "share of groups",
               "Groups of equal scores, which give GRPO no gradient.", _GROUPS,
               "down"),
        Metric("rollout/filter_kept", "share of episodes",
               "Episodes kept by filter and `overlong`."),
        Metric("rollout/logprob_difference_max", "nats",
               "Largest difference between sampled and recomputed log-probability of a token.",
               better="down"),
        Metric("rollout/kl", "nats per token",
               "Sampled minus recomputed log-probability, mean over sampled tokens."),
        Metric(RATIO_MEAN, "1",
               "Recomputed divided by sampled probability, mean over sampled tokens: 1 if rollout "
               "and trainer agree."),
        Metric(PROBABILITY_CORRELATION, "-1 to 1",
               "Pearson correlation of the two probabilities over sampled tokens.",
               "the probabilities vary", "up"),
        Metric("rollout/disagreement_alarm", "0 or 1",
               "Whether one of the two is outside `trainer.agreement`.", better="down"),
        Metric("critic/rewards/mean", "per episode",
               "Sum of token rewards: environment, format, judge and KL penalty.", better="up",
               panel=SCORE_PANEL),
        Metric("critic/advantages/mean", "reward", "Advantage of sampled tokens."),
        Metric("critic/advantages/max", "reward", "Largest advantage."),
        Metric("critic/advantages/min", "reward", "Smallest advantage."),
        Metric("critic/returns/mean", "reward", "Return of sampled tokens."),
        Metric("critic/values/mean", "reward", "Value before the update.", _CRITIC),
        Metric("critic/vf_explained_var", "at most 1",
               "Share of the returns' variance that the values explain.", _CRITIC, "up",
               "explained variance", EXPLAINED_PANEL),
        Metric("actor/reference_kl", "nats per token",
               "Log-probability minus the reference policy's, mean over sampled tokens.",
               "there is a KL penalty or KL loss", panel=KL_PANEL),
        Metric("credit/lam/turn_<k>", "1", "Lambda of a turn.",
               "`adaptive_credit` chooses lambdas"),
        Metric("credit/gamma/mean", "1", "Discount of a turn.", "`adaptive_credit` by potential"),
        Metric("credit/gamma/std", "1",
               "Its standard deviation.", "`adaptive_credit` by potential"),
        Metric("gigpo/singleton_turns", "share of turns",
               "Turns that are alone in their anchor group.", "`gigpo`", "down"),
        Metric("gigpo/nonzero_turns", "share of turns", "Turns with a step advantage other than 0.",
               "`gigpo`"),
        Metric("collapse/mutual_information", "nats per response",
               "How much a response depends on its prompt.", _COLLAPSE, "up"),
        Metric("collapse/retrieval_accuracy", "share of responses",
               "Responses that are most probable under their own prompt.", _COLLAPSE, "up"),
        Metric("collapse/entropy", "nats per response", "Entropy over all prompts.", _COLLAPSE),
        Metric("collapse/conditional_entropy", "nats per response", "Entropy given the prompt.",
               _COLLAPSE),
        Metric("collapse/samples", "responses", "Number of first turns measured.", _COLLAPSE),
    ),
    "update": (
        Metric("actor/loss", "1",
               "Clipped policy loss with entropy bonus and KL loss, mean over steps."),
        Metric(ENTROPY, "nats per token",
               "Entropy of the sampling distributions.", short="entropy",
               panel=ENTROPY_PANEL),
        Metric(ENTROPY_COEFF, "1", "Weight of the entropy bonus in this update.",
               "`actor.entropy_ctrl.target`"),
        Metric(UPDATE_KL, "nats per token",
               "Old minus new log-probability of sampled tokens, over the whole update.",
               short="KL", panel=KL_PANEL),
        Metric(PPO_KL, "nats per token",
               "The same during the update: 0 for a single optimizer step.",
               panel=KL_PANEL),
        Metric("actor/kl_loss", "nats per token", "KL loss against the reference policy.",
               "`actor.use_kl_loss`", panel=KL_PANEL),
        Metric("actor/pg_clipfrac", "share of tokens", "Tokens whose ratio is clipped.",
               panel=CLIP_PANEL),
        Metric("actor/pg_clipfrac_lower", "share of tokens",
               "Tokens restricted by the lower bound of dual-clip PPO.", panel=CLIP_PANEL),
        Metric("actor/ratio_mean", "1", "Probability ratio of new to old policy."),
        Metric("actor/ratio_max", "1", "Largest probability ratio."),
        Metric("actor/tis_mean", "1", "Truncated importance weight.", "`actor.tis_imp_ratio_cap`"),
        Metric("actor/tis_capped", "share of tokens",
               "Tokens whose importance ratio is above the cap.", "`actor.tis_imp_ratio_cap`"),
        Metric("actor/grad_norm", "1", "Gradient norm before clipping, of steps not skipped.",
               short="gradient", panel=GRADIENT_PANEL),
        Metric("actor/skipped_steps", "steps",
               "Optimizer steps skipped because of their gradient norm.",
               better="down"),
        Metric("actor/lr", "1", "Learning rate."),
        Metric("critic/loss", "reward squared", "Clipped value loss, mean over steps.", _CRITIC,
               "down", panel=VALUE_LOSS_PANEL),
        Metric("critic/vf_clipfrac", "share of tokens",
               "Tokens whose clipped value error is the larger.", _CRITIC, panel=CLIP_PANEL),
        Metric("critic/vf_error", "reward", "Value minus return.", _CRITIC),
        Metric("critic/value_mean", "reward", "Value during the update.", _CRITIC),
        Metric("critic/return_mean", "reward", "Return on the critic's training tokens.", _CRITIC),
        Metric("critic/grad_norm", "1", "As `actor/grad_norm`.", _CRITIC, panel=GRADIENT_PANEL),
        Metric("critic/skipped_steps", "steps", "As `actor/skipped_steps`.", _CRITIC, "down"),
        Metric("critic/lr", "1", "Learning rate.", _CRITIC),
        Metric("update/skipped", "0 or 1", "Whether there was no episode to learn from."),
        Metric("algorithm/kl_coef", "1", "Coefficient of the KL penalty in the reward."),
        Metric("guard/would_roll_back", "0 or 1",
               "Whether the guard judges the iteration as bad, enabled or not.", better="down"),
        Metric("guard/rolled_back", "0 or 1", "Whether the iteration was undone.", better="down"),
        Metric("guard/rollbacks", "iterations", "Number of rollbacks so far.", better="down"),
        Metric("guard/lr_scale", "1", "Factor of rollbacks on the learning rates."),
    ),
    "finalize": (
        Metric("run/gpu_hours", "h", "Number of GPUs times the time that the engine held them.",
               "it ran on GPUs", "down"),
        Metric("run/cost", "currency", "GPU-hours at `infra.gpu_hour_price`.",
               "`infra.gpu_hour_price`, and it ran on GPUs", "down"),
    ),
    "every step": (
        Metric(STEP_SECONDS, "s", "Duration of a step of an iteration."),
        Metric("perf/<call>/tokens_per_second", "tokens/s",
               "Tokens of all rows over the networks' seconds; `<call>` is `logprobs`, "
               "`reference`, `values`, `update_actor` or `update_critic`.",
               "the step calls the engine", "up"),
        Metric("perf/judge/seconds_per_request", "s",
               "Latency of requests, mean.",
               "a language model judges at an endpoint", "down"),
        Metric("perf/<call>/mfu", "0 to 1",
               "Model FLOPs utilisation: FLOPs that the model's layers need, as verl "
               "counts them, divided by the GPUs' peak.", _VERL_GPU, "up"),
        Metric("perf/<call>/max_memory_allocated", "GiB", "Peak memory of tensors on a GPU.", _GPU),
        Metric("perf/<call>/max_memory_reserved", "GiB",
               "Peak memory that torch reserved on a GPU.",
               _GPU),
    ),
}
"""The metrics of each step, in display order."""
# fmt: on


def all_metrics() -> Iterator[Metric]:
    """Every declared metric, in display order."""
    for metrics in STEPS.values():
        yield from metrics


@functools.cache
def find(name: str) -> Metric | None:
    """The metric of a logged name; None if it is not declared."""
    return next((metric for metric in all_metrics() if metric.matches(name)), None)


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    literal, *rest = re.split(r"<(\w+)>", name)
    parts = [re.escape(literal)]
    for variable, literal in zip(rest[::2], rest[1::2], strict=True):
        parts += [f"({_VALUES.get(variable, '[^/]+')})", re.escape(literal)]
    return re.compile("".join(parts))
