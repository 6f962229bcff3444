"""Checks of an estimator's arguments, alone and combined.

Shape legend: B rows, T tokens of the padded row.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from vagen.advantage.chunks import row_slices
from vagen.advantage.estimator import EstimatorSpec
from vagen.advantage.inputs import AdvantageArguments, AdvantageInputs
from vagen.advantage.rows import AdvantageError, Rows, require_rows


def checked_inputs(name: str, spec: EstimatorSpec, given: AdvantageArguments) -> AdvantageInputs:
    """The checked inputs of an estimator.

    Raises:
        AdvantageError: See `estimate_with_metrics`.
    """
    needs = {
        "values": spec.needs_critic,
        "turn_end_mask": spec.needs_turn_end,
        "group_ids": spec.group_based,
        "anchor_ids": spec.needs_anchors,
        "baselines": spec.needs_baselines,
    }
    for argument, needed in needs.items():
        if needed and getattr(given, argument) is None:
            raise AdvantageError(f"{name} needs `{argument}`")
    rows = Rows(given.rewards, given.attention_mask, given.trajectory_ids)
    if not spec.stitches:
        rows.require_single(name)
    checked: dict[str, Any] = {}
    for field in fields(AdvantageArguments):
        value, check = getattr(given, field.name), field.metadata["check"]
        checked[field.name] = (
            value if value is None or check is None else check(rows, field.name, value)
        )
    for name, default in (("action_mask", "loss_mask"), ("task_rewards", "rewards")):
        if checked[name] is None:
            checked[name] = checked[default]
    if given.high_level_lam is None:
        checked["high_level_lam"] = checked["lam"]
    checked["trajectory_ids"] = rows.trajectory_ids
    inputs = AdvantageInputs(
        **checked,
        counted=rows.counted,
        dtype=torch.promote_types(given.rewards.dtype, torch.float32),
    )
    _check(spec, inputs)
    return inputs


def _check(spec: EstimatorSpec, inputs: AdvantageInputs) -> None:
    loss, attended, ends = inputs.loss_mask, inputs.attention_mask, inputs.turn_end_mask
    actions = inputs.action_mask
    everywhere = spec.reads_padding and inputs.bootstrap_values is None
    read = None if everywhere else attended if spec.mask == "attention" else loss
    floats = {"rewards": inputs.rewards, "task_rewards": inputs.task_rewards}
    if spec.needs_critic and inputs.values is not None:
        floats["values"] = inputs.values
    _require(
        inputs, "loss_mask", "sampled tokens at padding", lambda p: _within(loss[p], attended[p])
    )
    if actions is not loss:
        _require(
            inputs,
            "action_mask",
            "sampled tokens off it, or padding on it",
            lambda p: _within(loss[p], actions[p]) & _within(actions[p], attended[p]),
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
    """[B] whether the first mask is a subset of the second."""
    return torch.gt(inner_BT, outer_BT).sum(1) == 0


def _lengths(mask_BT: Tensor) -> Tensor:
    """[B] position after the last set entry; 0 if there is none."""
    width = mask_BT.shape[1]
    if not width:
        return mask_BT.sum(1)
    positions = torch.arange(1, width + 1, dtype=torch.int32, device=mask_BT.device)
    return (mask_BT * positions).amax(1)


def _finite(x_BT: Tensor, mask_BT: Tensor | None) -> Tensor:
    """[B] whether all numbers under the mask are finite, computed from their sum."""
    read_BT = x_BT if mask_BT is None else torch.where(mask_BT, x_BT, 0.0)
    return torch.isfinite(read_BT.sum(1, dtype=torch.float64))


def _check_turns(spec: EstimatorSpec, inputs: AdvantageInputs, ends: Tensor) -> None:
    """Checks that per-turn arguments cover every turn."""
    counts = ends.sum(1)
    ids = inputs.trajectory_ids
    of_trajectory = counts.new_zeros(inputs.counted.numel()).index_add_(0, ids, counts)
    for name, table in (("turn_lams", inputs.turn_lams), ("turn_gammas", inputs.turn_gammas)):
        if spec.adapts and table is not None:
            ok = (of_trajectory <= table.shape[1])[ids]
            require_rows(name, ok, f"given for {table.shape[1]} turns, the trajectory has more")
    if spec.needs_anchors and inputs.anchor_ids is not None:
        require_rows("anchor_ids", ~(ends & (inputs.anchor_ids < 0)).any(1), "turn without a state")
