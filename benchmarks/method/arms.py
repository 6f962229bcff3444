"""What is compared: arms on the token task, and the contrasts that the papers' claims come to."""

from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from benchmarks.method.lab import TURNS, Task
from benchmarks.method.learner import Arm


def name_of(task: Task) -> str:
    """`dependent, sparse, noisy, 32 turns`; `dense` is said where nothing else is."""
    kinds = [kind for kind in ("sparse", "noisy") if getattr(task, kind, task.noise > 0)]
    length = [f"{task.turns} turns"] if task.turns != TURNS else []
    first = "dependent" if task.dependent else "independent"
    return ", ".join([first, *(kinds or ["dense"]), *length])


CROSSED = {
    name_of(task): task
    for turns in (TURNS, 2, 32)
    for dependent, sparse, noise in product((True, False), (False, True), (0.0, 1.0))
    for task in [Task(dependent, sparse, noise, turns)]
}
"""Dependence, sparsity, noise and length."""
TASKS = {
    name: task
    for name, task in CROSSED.items()
    if task.turns == TURNS and not (task.sparse and task.noise)
}
"""Those of the contrasts."""
LEVELS = "levels"
"""The task of `benchmarks.method.curriculum`."""

_TURNS = Arm("masked_gae")
_SUM = replace(_TURNS, use_multi_turn_reward=False)
_GROUPS = replace(_SUM, n_trajectory=8)
_TURN_WISE = Arm("turn_wise_gae", high_level_gamma=1.0)
_BI_LEVEL = Arm("bi_level_gae")
_CLOCK = Arm("variable_clock_gae", high_level_lam=0.95, bi_level_mix=0.75)
"""As VAGEN's main branch has it."""

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
    "variable clock, turns": _CLOCK,
    "variable clock .5, turns": replace(_CLOCK, high_level_lam=0.5, bi_level_mix=1.0),
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
_PLACED = ("masked, turns", "bi-level, turns", "variable clock, turns")
for _name in _PLACED:
    JUDGED[f"{_name}, judge"] = replace(PER_TURN[_name], judge="judge")
    JUDGED[f"{_name}, judge on spans"] = replace(
        PER_TURN[_name], judge="judge", reward_placement="span"
    )

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
COMPARED = (
    *("masked", "masked, turns", "bi-level, turns", "bi-level .5, turns"),
    *("variable clock, turns", "grpo", "gigpo, turns"),
)
"""Arms of all tasks."""
_EARLY = {"dependent, dense": "gigpo, turns", "independent, sparse": "grpo"}
_EARLY["independent, noisy"] = "gigpo, turns"
"""Estimators without a critic, for the losses."""
BONUSES: dict[str, dict[str, Any]] = {
    "entropy .02": {"entropy_coeff": 0.02},
    "entropy .1": {"entropy_coeff": 0.1},
    "entropy target .5": {"entropy_target": 0.5},
    "entropy target 1": {"entropy_target": 1.0},
}
COVARIANCE: dict[str, dict[str, Any]] = {
    mode: {"loss_mode": mode} for mode in ("clip_cov", "kl_cov")
}
RATIOS: dict[str, dict[str, Any]] = {
    mode: {"loss_mode": mode} for mode in ("gspo", "gspo_turn", "cispo")
}


def _losses(task: str) -> dict[str, Arm]:
    """Bonuses and losses, each beside the same start without.

    A confident policy's first logits are eight times as far apart: as after imitation it is sure of
    what it does, right or wrong. With four epochs an iteration has eight steps, so that ratios
    leave 1.
    """
    first = (SUMMED | PER_TURN)[_EARLY[task]]
    confident, often = replace(first, sharpness=8.0), replace(first, epochs=4)
    kinds = {"fresh": (first, BONUSES), "4 epochs": (often, RATIOS)}
    kinds["confident"] = (confident, BONUSES | COVARIANCE)
    return {
        f"{start}: {name}": replace(base, **options)
        for start, (base, others) in kinds.items()
        for name, options in ({"plain": {}, **others}).items()
    }


def arms_of(name: str) -> dict[str, Arm]:
    """Arms that a task can tell apart: where the only reward is at the end it is summed anyway."""
    if name == LEVELS:
        draws = {"even": None, "curriculum": TURNS, "curriculum, 4 buckets": 4}
        return {
            f"{estimator}: {draw}": replace(SUMMED[estimator], buckets=buckets)
            for estimator in ("grpo", "masked")
            for draw, buckets in draws.items()
        }
    task, every = CROSSED[name], SUMMED | PER_TURN
    compared = {arm: every[arm] for arm in COMPARED if not (task.sparse and arm == "masked, turns")}
    if name not in TASKS:
        return compared
    if not task.sparse and not task.noise:
        asked = every
    else:
        asked = {arm: every[arm] for arm in every if arm not in ONLY_DENSE}
        if task.sparse:
            apart = ("bi-level .9, turns", "adaptive, turns", "variable clock .5, turns")
            asked = {arm: asked[arm] for arm in asked if arm in (*SUMMED, *COMPARED, *apart)}
            del asked["masked, turns"]
        asked |= JUDGED
    return asked | (_losses(name) if name in _EARLY else {})


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
    *(
        Contrast(
            f"judge on spans against turn ends, {name}", f"{name}, judge", f"{name}, judge on spans"
        )
        for name in _PLACED
    ),
    Contrast("variable clock against masked GAE", "masked, turns", "variable clock, turns"),
    Contrast("variable clock against bi-level λ 1", "bi-level, turns", "variable clock, turns"),
    Contrast(
        "variable clock against bi-level, both λ .5",
        "bi-level .5, turns",
        "variable clock .5, turns",
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

LOSSES = [
    Contrast(f"{name}, {start}", f"{start}: plain", f"{start}: {name}")
    for start, names in (
        ("fresh", BONUSES),
        ("confident", BONUSES | COVARIANCE),
        ("4 epochs", RATIOS),
    )
    for name in names
]
CURRICULUM = [
    Contrast(f"{draw}, {estimator}", f"{estimator}: even", f"{estimator}: {draw}")
    for estimator in ("grpo", "masked")
    for draw in ("curriculum", "curriculum, 4 buckets")
]
STUDIES = {"claims": CONTRASTS, "losses": LOSSES, "curriculum": CURRICULUM}
"""Contrasts that are corrected for their number together."""
