"""The one entry point: checks the arguments, runs the estimator.

Shape legend: B rows (one trajectory each), T tokens of the padded row.
"""

import difflib
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from vagen.advantage.inputs import AdvantageError, AdvantageInputs, as_group_index, require_rows
from vagen.advantage.registry import ESTIMATORS, EstimatorSpec
from vagen.advantage.segments import Selection


@torch.no_grad()
def estimate_advantages(
    name: str,
    *,
    rewards: Tensor,
    values: Tensor | None = None,
    loss_mask: Tensor,
    turn_end_mask: Tensor | None = None,
    attention_mask: Tensor,
    group_ids: Tensor | Sequence[Hashable] | None = None,
    gamma: float = 1.0,
    lam: float = 1.0,
    high_level_gamma: float = 0.95,
    high_level_lam: float | None = None,
    bootstrap_values: Tensor | None = None,
    whiten: bool = True,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns of a batch of trajectories.

    Only tokens of the estimator's own mask (`ESTIMATORS[name].mask`) are read and written; what
    rewards and values hold elsewhere has no effect (`gae` without `bootstrap_values` is the one
    exception, see there). Computed in float64. Whitening and groups are over the whole batch, so
    give the whole batch at once; leave padding rows out or give them an empty attention mask.

    Args:
        name: a key of `ESTIMATORS`.
        rewards: [B, T] floats, reward of each token; a turn's reward is on its last sampled token.
        values: [B, T] floats, critic's value *before* each token; needed by the GAE family.
        loss_mask: [B, T], non-zero on tokens the policy sampled.
        turn_end_mask: [B, T], non-zero on the last sampled token of each turn; needed by
            turn-level estimators.
        attention_mask: [B, T], non-zero on tokens that are not padding.
        group_ids: [B] ids of any kind, equal for trajectories of one level; needed by
            group-relative estimators.
        gamma: discount per token, in [0, 1].
        lam: GAE lambda per token, in [0, 1].
        high_level_gamma: discount per turn, in [0, 1].
        high_level_lam: GAE lambda per turn, in [0, 1]; None takes `lam`.
        bootstrap_values: [B] floats, critic's value of the state after the last turn for truncated
            rows, 0 for terminated ones; None is 0 for all.
        whiten: whether the GAE family's advantages are whitened. Returns never are.

    Returns:
        Advantages and returns, each [B, T] in the dtype of `rewards` (at least float32), 0 where
        the estimator has nothing to say.

    Raises:
        AdvantageError: unknown name, missing or misshapen argument, inconsistent masks, or a
            number that is not finite on a token the estimator reads.
    """
    spec = _find(name)
    if rewards.dim() != 2:
        raise AdvantageError(f"rewards: shape {list(rewards.shape)}; it must be [B, T]")
    shape = rewards.shape
    for argument, needed, given in (
        ("values", spec.needs_critic, values),
        ("turn_end_mask", spec.needs_turn_end, turn_end_mask),
        ("group_ids", spec.group_based, group_ids),
    ):
        if needed and given is None:
            raise AdvantageError(f"{name} needs `{argument}`")

    device = rewards.device
    inputs = AdvantageInputs(
        rewards=rewards.detach().to(torch.float64),
        values=_floats("values", values, shape, device),
        loss_mask=_mask("loss_mask", loss_mask, shape, device),
        turn_end_mask=None
        if turn_end_mask is None
        else _mask("turn_end_mask", turn_end_mask, shape, device),
        attention_mask=_mask("attention_mask", attention_mask, shape, device),
        group_ids=None if group_ids is None else as_group_index(group_ids, shape[0]).to(device),
        bootstrap_values=_floats("bootstrap_values", bootstrap_values, shape[:1], device),
        gamma=_fraction("gamma", gamma),
        lam=_fraction("lam", lam),
        high_level_gamma=_fraction("high_level_gamma", high_level_gamma),
        high_level_lam=_fraction(
            "high_level_lam", lam if high_level_lam is None else high_level_lam
        ),
        whiten=whiten,
    )
    _check(spec, inputs)
    advantages, returns = spec.function(inputs)
    dtype = torch.promote_types(rewards.dtype, torch.float32)
    return advantages.to(dtype), returns.to(dtype)


def _find(name: str) -> EstimatorSpec:
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    near = difflib.get_close_matches(name, ESTIMATORS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "it must be one of: " + ", ".join(ESTIMATORS)
    raise AdvantageError(f"unknown advantage estimator {name!r}; {hint}")


def _floats(name: str, x: Tensor | None, shape: torch.Size, device: torch.device) -> Tensor | None:
    if x is None:
        return None
    if x.shape != shape:
        raise AdvantageError(f"{name}: shape {list(x.shape)}; it must be {list(shape)}")
    return x.detach().to(device=device, dtype=torch.float64)


def _mask(name: str, x: Tensor, shape: torch.Size, device: torch.device) -> Tensor:
    if x.shape != shape:
        raise AdvantageError(f"{name}: shape {list(x.shape)}; it must be {list(shape)}")
    return x.to(device) != 0


def _fraction(name: str, x: float) -> float:
    if not 0.0 <= x <= 1.0:
        raise AdvantageError(f"{name} = {x}; it must be in [0, 1]")
    return float(x)


def _check(spec: EstimatorSpec, inputs: AdvantageInputs) -> None:
    loss, attended, ends = inputs.loss_mask, inputs.attention_mask, inputs.turn_end_mask
    require_rows("loss_mask", ~(loss & ~attended).any(1), "sampled tokens at padding")
    if spec.needs_turn_end:
        assert ends is not None
        require_rows("turn_end_mask", ~(ends & ~loss).any(1), "turn ends off the loss mask")
        tokens = Selection.of(loss)
        if tokens.width:
            last = (tokens.lengths - 1).clamp(min=0)[:, None]
            closed = tokens.take(ends).gather(1, last).squeeze(1)
            require_rows(
                "turn_end_mask", closed | (tokens.lengths == 0), "last sampled token ends no turn"
            )

    mask = attended if spec.mask == "attention" else loss
    if spec.reads_padding and inputs.bootstrap_values is None:
        mask = torch.ones_like(attended)
    for name, x in (("rewards", inputs.rewards), ("values", inputs.values)):
        if x is not None:
            require_rows(name, ~(mask & ~torch.isfinite(x)).any(1), "not finite")
    if inputs.bootstrap_values is not None:
        require_rows("bootstrap_values", torch.isfinite(inputs.bootstrap_values), "not finite")
