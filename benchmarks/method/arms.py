"""What is compared: arms on the token task, and the contrasts that the papers' claims come to."""

from dataclasses import replace
from typing import NamedTuple

from benchmarks.method.lab import Task
from benchmarks.method.learner import Arm

TASKS = {
    "dependent, dense": Task(dependent=True, reward="dense"),
    "independent, sparse": Task(dependent=False, reward="sparse"),
    "independent, noisy": Task(dependent=False, reward="noisy"),
    "independent, dense": Task(dependent=False, reward="dense"),
    "dependent, noisy": Task(dependent=True, reward="noisy"),
    "dependent, sparse": Task(dependent=True, reward="sparse"),
}
"""In the order in which they are run."""

_TURNS = Arm("masked_gae")
_SUM = replace(_TURNS, use_multi_turn_reward=False)
_GROUPS = replace(_SUM, n_trajectory=8)
_TURN_WISE = Arm("turn_wise_gae", high_level_gamma=1.0)
_BI_LEVEL = Arm("bi_level_gae")

SUMMED: dict[str, Arm] = {
    "gae, no loss mask": replace(_SUM, adv_estimator="gae", use_loss_mask=False),
    "gae": replace(_SUM, adv_estimator="gae"),
    "masked, no loss mask": replace(_SUM, use_loss_mask=False),
    "masked": _SUM,
    "turn-wise, no loss mask": replace(
        _TURN_WISE, use_multi_turn_reward=False, use_loss_mask=False
    ),
    "turn-wise": replace(_TURN_WISE, use_multi_turn_reward=False),
    "bi-level": replace(_BI_LEVEL, use_multi_turn_reward=False),
    "grpo": replace(_GROUPS, adv_estimator="masked_grpo"),
    "grpo, no loss mask": replace(_GROUPS, adv_estimator="grpo", use_loss_mask=False),
    "rloo": replace(_GROUPS, adv_estimator="masked_rloo"),
    "masked, groups": _GROUPS,
    "masked, groups, best quarter": replace(_GROUPS, rollout_filter=0.25),
    "grpo, best quarter": replace(_GROUPS, adv_estimator="masked_grpo", rollout_filter=0.25),
    "masked, clip higher": replace(_SUM, clip_ratio_high=0.28),
    "masked, value clip .5": replace(_SUM, cliprange_value=0.5),
    "remax": replace(_SUM, adv_estimator="remax"),
    "brpo": replace(_SUM, adv_estimator="brpo"),
    "arpo": replace(_SUM, adv_estimator="arpo"),
}
"""One reward at the end: the sum of all turns."""

PER_TURN: dict[str, Arm] = {
    "masked, turns": _TURNS,
    "turn-wise, turns": _TURN_WISE,
    "turn-wise from starts, turns": Arm("no_concat_gae"),
    "bi-level, turns": _BI_LEVEL,
    "bi-level .5, turns": replace(_BI_LEVEL, high_level_lam=0.5),
    "gigpo, turns": Arm("gigpo", n_trajectory=8),
    "reinforce++, turns": Arm("reinforce_plus_plus"),
    "remax, turns": Arm("remax"),
    "bi-level .9, turns": replace(_BI_LEVEL, high_level_lam=0.9),
    "bi-level 0, turns": replace(_BI_LEVEL, high_level_lam=0.0),
    "bi-level .5 undiscounted, turns": replace(_BI_LEVEL, high_level_lam=0.5, high_level_gamma=1.0),
    "adaptive, turns": Arm("adaptive_credit"),
    "gae, turns": Arm("gae"),
    "gae token .95, turns": Arm("gae", lam=0.95),
    "masked token .95, turns": Arm("masked_gae", lam=0.95),
    "masked not whitened, turns": replace(_TURNS, whiten=False),
    "masked value clip .5, turns": replace(_TURNS, cliprange_value=0.5),
}
"""Each turn's reward at its own end."""

JUDGED: dict[str, Arm] = {
    f"{name}, {judge}": replace(PER_TURN[name], judge=judge)
    for name in ("bi-level, turns", "bi-level .5, turns")
    for judge in ("judge", "placebo")
}

ONLY_IN_GRADIENTS: dict[str, Arm] = {
    "rloo, no loss mask": replace(_GROUPS, adv_estimator="rloo", use_loss_mask=False),
    "turn-wise no_concat_gae_last, turns": Arm("no_concat_gae_last"),
}
"""With these `ESTIMATORS` is complete."""


ONLY_DENSE = (
    *("grpo, best quarter", "brpo", "arpo", "masked, clip higher", "masked, value clip .5"),
    *("bi-level 0, turns", "bi-level .5 undiscounted, turns", "gae token .95, turns"),
    *("masked token .95, turns", "masked not whitened, turns", "masked value clip .5, turns"),
)
"""Questions of less weight, asked where learning is fastest."""
SPARSE = ("bi-level, turns", "bi-level .5, turns")


def arms_of(task: Task) -> dict[str, Arm]:
    """Arms that a task can tell apart: where the only reward is at the end it is summed anyway."""
    if task.reward == "dense":
        return SUMMED | PER_TURN
    asked = {name: arm for name, arm in (SUMMED | PER_TURN).items() if name not in ONLY_DENSE}
    if task.reward == "sparse":
        more = () if task.dependent else (*SUMMED, "bi-level .9, turns", "adaptive, turns")
        asked = {name: arm for name, arm in asked.items() if name in (*SPARSE, *more)}
    return asked | JUDGED


class Contrast(NamedTuple):
    """A claim and the two arms that it sets against each other."""

    claim: str
    baseline: str
    candidate: str


CONTRASTS = [
    Contrast("loss mask, token GAE", "gae, no loss mask", "gae"),
    Contrast("turn rewards, masked GAE", "masked", "masked, turns"),
    Contrast("bi-level against masked GAE, turn rewards", "masked, turns", "bi-level, turns"),
    Contrast("turn λ .5 against 1", "bi-level, turns", "bi-level .5, turns"),
    Contrast("M^adv, summed reward", "gae", "masked"),
    Contrast("loss mask, turn-wise GAE (`vanilla_ppo`)", "turn-wise, no loss mask", "turn-wise"),
    Contrast("masked GAE against GRPO, summed reward", "grpo", "masked"),
    Contrast("GiGPO against GRPO", "grpo", "gigpo, turns"),
    Contrast("bi-level λ .5 against GiGPO", "gigpo, turns", "bi-level .5, turns"),
    Contrast("judge against none, turn λ 1", "bi-level, turns", "bi-level, turns, judge"),
    Contrast(
        "judge against placebo, turn λ 1", "bi-level, turns, placebo", "bi-level, turns, judge"
    ),
    Contrast("judge against none, turn λ .5", "bi-level .5, turns", "bi-level .5, turns, judge"),
    Contrast(
        "judge against placebo, turn λ .5",
        "bi-level .5, turns, placebo",
        "bi-level .5, turns, judge",
    ),
    Contrast("all of TRICO against PPO", "gae, no loss mask", "bi-level, turns"),
    Contrast("bi-level GAE against GRPO", "grpo", "bi-level, turns"),
    Contrast("turn rewards, bi-level GAE", "bi-level", "bi-level, turns"),
    Contrast("bi-level against masked GAE, summed reward", "masked", "bi-level"),
    Contrast("bi-level against turn-wise GAE", "turn-wise, turns", "bi-level, turns"),
    Contrast(
        "turn value before `e_k` against before `f_k`",
        "turn-wise from starts, turns",
        "turn-wise, turns",
    ),
    Contrast("adaptive turn λ against 1", "bi-level, turns", "adaptive, turns"),
    Contrast("adaptive turn λ against .5", "bi-level .5, turns", "adaptive, turns"),
    Contrast("loss mask, masked GAE", "masked, no loss mask", "masked"),
    Contrast("loss mask, GRPO", "grpo, no loss mask", "grpo"),
    Contrast("8 levels × 8 against 64 × 1, masked GAE", "masked", "masked, groups"),
    Contrast(
        "most uncertain quarter, PPO (StarPO-S)", "masked, groups", "masked, groups, best quarter"
    ),
    Contrast("turn λ .9 against 1", "bi-level, turns", "bi-level .9, turns"),
    Contrast("GRPO's deviation against none (RLOO)", "rloo", "grpo"),
    Contrast("ReMax against masked GAE, summed reward", "masked", "remax"),
    Contrast("ReMax against masked GAE, turn rewards", "masked, turns", "remax, turns"),
    Contrast("REINFORCE++ against masked GAE", "masked, turns", "reinforce++, turns"),
    Contrast("M^adv, turn rewards", "gae, turns", "masked, turns"),
    Contrast("turn λ 0 against .5", "bi-level .5, turns", "bi-level 0, turns"),
    Contrast(
        "turn discount .95 against 1, at turn λ .5",
        "bi-level .5 undiscounted, turns",
        "bi-level .5, turns",
    ),
    Contrast(
        "value clip .5 against 5, turn rewards", "masked, turns", "masked value clip .5, turns"
    ),
    Contrast("value clip .5 against 5, summed reward", "masked", "masked, value clip .5"),
    Contrast("whitening", "masked not whitened, turns", "masked, turns"),
    Contrast("M^adv, token λ .95", "gae token .95, turns", "masked token .95, turns"),
    Contrast("token λ .95 against 1, masked GAE", "masked, turns", "masked token .95, turns"),
    Contrast("most uncertain quarter, GRPO", "grpo", "grpo, best quarter"),
    Contrast("clip .28 above against .2", "masked", "masked, clip higher"),
    Contrast("BRPO against GRPO", "grpo", "brpo"),
    Contrast("bare scores (ARPO) against BRPO", "brpo", "arpo"),
]
"""The weightiest first: arms are run in the order in which they are asked for."""
