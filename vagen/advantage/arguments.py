"""From what a caller gives to what an estimator reads.

Shape legend: B rows, L trajectories, T tokens of the padded row, K turns of a trajectory.
"""

import difflib
from collections.abc import Callable, Hashable, Sequence
from typing import get_args

import torch
from torch import Tensor

from vagen.advantage.chunks import row_slices
from vagen.advantage.inputs import (
    AdvantageError,
    AdvantageInputs,
    Normalization,
    number_ids,
    require_rows,
)
from vagen.advantage.registry import ESTIMATORS, EstimatorSpec

Ids = Tensor | Sequence[Hashable]


def checked_inputs(
    name: str,
    *,
    rewards: Tensor,
    loss_mask: Tensor,
    attention_mask: Tensor,
    values: Tensor | None = None,
    turn_end_mask: Tensor | None = None,
    group_ids: Ids | None = None,
    trajectory_ids: Ids | None = None,
    anchor_ids: Tensor | None = None,
    bootstrap_values: Tensor | None = None,
    baselines: Tensor | None = None,
    turn_lams: Tensor | None = None,
    turn_gammas: Tensor | None = None,
    gamma: float = 1.0,
    lam: float = 1.0,
    high_level_gamma: float = 0.95,
    high_level_lam: float | None = None,
    step_advantage_weight: float = 1.0,
    step_gamma: float = 0.95,
    step_normalization: Normalization = "mean",
) -> AdvantageInputs:
    """Arguments of `estimate_advantages`, checked.

    Raises:
        AdvantageError: see `estimate_advantages`.
    """
    spec = find_estimator(name)
    if rewards.dim() != 2:
        raise AdvantageError(f"rewards: shape {list(rewards.shape)}; it must be [B, T]")
    given: dict[str, tuple[bool, object]] = {
        "values": (spec.needs_critic, values),
        "turn_end_mask": (spec.needs_turn_end, turn_end_mask),
        "group_ids": (spec.group_based, group_ids),
        "anchor_ids": (spec.needs_anchors, anchor_ids),
        "baselines": (spec.needs_baselines, baselines),
    }
    for argument, (needed, value) in given.items():
        if needed and value is None:
            raise AdvantageError(f"{name} needs `{argument}`")
    if step_normalization not in get_args(Normalization):
        raise AdvantageError(f"step_normalization = {step_normalization!r}; use mean or mean_std")

    shape, device = rewards.shape, rewards.device
    attended = _mask("attention_mask", attention_mask, shape, device)
    rows = _Rows(attended, trajectory_ids)
    if not spec.stitches:
        rows.require_single(name)
    inputs = AdvantageInputs(
        rewards=rewards.detach(),
        values=_matrix("values", values, shape, device),
        loss_mask=_mask("loss_mask", loss_mask, shape, device),
        turn_end_mask=None
        if turn_end_mask is None
        else _mask("turn_end_mask", turn_end_mask, shape, device),
        attention_mask=attended,
        anchor_ids=_matrix("anchor_ids", anchor_ids, shape, device),
        line_of_row=rows.line_of_row,
        counted=rows.counted,
        group_ids=None if group_ids is None else rows.groups(group_ids),
        bootstrap_values=rows.numbers("bootstrap_values", bootstrap_values),
        baselines=rows.numbers("baselines", baselines),
        turn_lams=rows.tables("turn_lams", turn_lams),
        turn_gammas=rows.tables("turn_gammas", turn_gammas),
        gamma=_fraction("gamma", gamma),
        lam=_fraction("lam", lam),
        high_level_gamma=_fraction("high_level_gamma", high_level_gamma),
        high_level_lam=_fraction(
            "high_level_lam", lam if high_level_lam is None else high_level_lam
        ),
        step_advantage_weight=float(step_advantage_weight),
        step_gamma=_fraction("step_gamma", step_gamma),
        step_normalization=step_normalization,
        dtype=torch.promote_types(rewards.dtype, torch.float32),
    )
    _check(spec, inputs)
    return inputs


def find_estimator(name: str) -> EstimatorSpec:
    """The estimator of that name.

    Raises:
        AdvantageError: with the nearest known name.
    """
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    near = difflib.get_close_matches(name, ESTIMATORS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "it must be one of: " + ", ".join(ESTIMATORS)
    raise AdvantageError(f"unknown advantage estimator {name!r}; {hint}")


class _Rows:
    """Which rows make a trajectory; reduces what is given per row to one entry per trajectory."""

    def __init__(self, attended: Tensor, trajectory_ids: Ids | None):
        self.attended = attended.sum(1) > 0
        count, device = len(self.attended), attended.device
        index = torch.arange(count, device=device)
        self.line_of_row = index
        if trajectory_ids is not None:
            self.line_of_row = number_ids("trajectory_ids", trajectory_ids, count).to(device)
        lines = int(self.line_of_row.max()) + 1 if count else 0
        self.attended_rows = index.new_zeros(lines).index_add_(
            0, self.line_of_row, self.attended.long()
        )
        self.counted = self.attended_rows > 0
        latest = torch.where(self.attended, index + count, index)
        of_line = index.new_zeros(lines).scatter_reduce_(0, self.line_of_row, latest, "amax")
        self.last_row = of_line % max(count, 1)
        """[L] last row of each trajectory that is not padding."""

    def require_single(self, name: str) -> None:
        ok = (self.attended_rows <= 1)[self.line_of_row]
        require_rows(
            "trajectory_ids",
            ok | ~self.attended,
            f"{name} needs each trajectory in one row, take an estimator that stitches "
            "(masked_gae, bi_level_gae, grpo)",
        )

    def groups(self, group_ids: Ids) -> Tensor:
        of_row = number_ids("group_ids", group_ids, len(self.attended)).to(self.attended.device)
        of_line = of_row[self.last_row]
        same = of_row == of_line[self.line_of_row]
        require_rows("group_ids", same | ~self.attended, "rows of one trajectory in several groups")
        # Numbered anew, for a group may have consisted of padding rows of other groups.
        return of_line.unique(return_inverse=True)[1]

    def numbers(self, name: str, x_B: Tensor | None) -> Tensor | None:
        if x_B is None:
            return None
        x_B = _matrix(name, x_B, self.attended.shape, self.attended.device)
        assert x_B is not None
        require_rows(name, torch.isfinite(x_B), "not finite")
        return x_B.double()[self.last_row]

    def tables(self, name: str, x: Tensor | None) -> Tensor | None:
        """[K] for all trajectories, or [B, K]."""
        if x is None:
            return None
        count = len(self.attended)
        if x.dim() == 1:
            x = x.expand(count, -1)
        if x.dim() != 2 or x.shape[0] != count:
            raise AdvantageError(f"{name}: shape {list(x.shape)}; it must be [K] or [{count}, K]")
        x = x.detach().to(self.attended.device, torch.float64)
        require_rows(name, ((x >= 0) & (x <= 1)).all(1), "not in [0, 1]")
        return x[self.last_row]


def _matrix(name: str, x: Tensor | None, shape: torch.Size, device: torch.device) -> Tensor | None:
    if x is None:
        return None
    if x.shape != shape:
        raise AdvantageError(f"{name}: shape {list(x.shape)}; it must be {list(shape)}")
    return x.detach().to(device)


def _mask(name: str, x: Tensor, shape: torch.Size, device: torch.device) -> Tensor:
    matrix = _matrix(name, x, shape, device)
    assert matrix is not None
    return matrix if matrix.dtype == torch.bool else matrix != 0


def _fraction(name: str, x: float) -> float:
    if not 0.0 <= x <= 1.0:
        raise AdvantageError(f"{name} = {x}; it must be in [0, 1]")
    return float(x)


def _check(spec: EstimatorSpec, inputs: AdvantageInputs) -> None:
    loss, attended, ends = inputs.loss_mask, inputs.attention_mask, inputs.turn_end_mask
    everywhere = spec.reads_padding and inputs.bootstrap_values is None
    read = None if everywhere else attended if spec.mask == "attention" else loss
    floats = {"rewards": inputs.rewards}
    if spec.needs_critic and inputs.values is not None:
        floats["values"] = inputs.values
    _require(
        inputs, "loss_mask", "sampled tokens at padding", lambda p: _within(loss[p], attended[p])
    )
    if spec.needs_turn_end:
        assert ends is not None
        _require(
            inputs,
            "turn_end_mask",
            "turn ends off the loss mask",
            lambda p: _within(ends[p], loss[p]),
        )
        _require(
            inputs,
            "turn_end_mask",
            "last sampled token ends no turn",
            lambda p: _lengths(ends[p]) == _lengths(loss[p]),
        )
        _check_turns(spec, inputs, ends)
    for name, x in floats.items():
        _require(
            inputs,
            name,
            "not finite",
            lambda p, x=x: _finite(x[p], None if read is None else read[p]),
        )


def _require(
    inputs: AdvantageInputs, name: str, problem: str, test: Callable[[slice], Tensor]
) -> None:
    parts = [test(part) for part in row_slices(inputs.rewards)]
    if parts:
        require_rows(name, torch.cat(parts), problem)


def _within(inner_BT: Tensor, outer_BT: Tensor) -> Tensor:
    """[B] whether one mask is part of the other."""
    return torch.gt(inner_BT, outer_BT).sum(1) == 0


def _lengths(mask_BT: Tensor) -> Tensor:
    """[B] position after the last one that is set, 0 if none is."""
    width = mask_BT.shape[1]
    if not width:
        return mask_BT.sum(1)
    positions = torch.arange(1, width + 1, dtype=torch.int32, device=mask_BT.device)
    return (mask_BT * positions).amax(1)


def _finite(x_BT: Tensor, mask_BT: Tensor | None) -> Tensor:
    """[B] whether all numbers under the mask are finite, as their sum then is."""
    read_BT = x_BT if mask_BT is None else torch.where(mask_BT, x_BT, 0.0)
    return torch.isfinite(read_BT.sum(1, dtype=torch.float64))


def _check_turns(spec: EstimatorSpec, inputs: AdvantageInputs, ends: Tensor) -> None:
    """What is given per turn is given for every turn."""
    counts = ends.sum(1)
    of_line = counts.new_zeros(inputs.counted.numel()).index_add_(0, inputs.line_of_row, counts)
    for name, table in (("turn_lams", inputs.turn_lams), ("turn_gammas", inputs.turn_gammas)):
        if spec.adapts and table is not None:
            ok = (of_line <= table.shape[1])[inputs.line_of_row]
            require_rows(name, ok, f"given for {table.shape[1]} turns, the trajectory has more")
    if spec.needs_anchors and inputs.anchor_ids is not None:
        require_rows("anchor_ids", ~(ends & (inputs.anchor_ids < 0)).any(1), "turn without a state")
