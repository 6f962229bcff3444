"""Entry points: check the arguments, run the estimator, whiten.

Shape legend: B rows, T tokens of the padded row.
"""

import importlib
import importlib.metadata
from collections.abc import Callable, Hashable, Sequence
from dataclasses import MISSING, fields
from typing import Any

import torch
from torch import Tensor

from vagen.advantage.chunks import row_slices
from vagen.advantage.estimator import EstimatorSpec
from vagen.advantage.estimators import ESTIMATORS
from vagen.advantage.inputs import AdvantageArguments, AdvantageEstimate, AdvantageInputs, MaskName
from vagen.advantage.rows import AdvantageError, Rows, numbered, require_rows
from vagen.config.errors import unknown_name


@torch.no_grad()
def estimate_with_metrics(
    name: str,
    *,
    whiten: bool = True,
    whiten_ids: Sequence[Hashable] | None = None,
    **arguments: Any,
) -> AdvantageEstimate:
    """Advantages and returns of a batch of trajectories.

    Only tokens of the estimator's own mask (`get_estimator(name).mask`) are read and written; other
    rewards and values have no effect (except for `gae` without `bootstrap_values`, see there).
    Computed in float64. Whitening and groups use the whole batch, so pass the whole batch; drop
    padding rows or give them an empty attention mask.

    A trajectory may have several rows, each with some of its turns. Recursions then run across
    rows as if its sampled tokens were in one, and a group counts it once.

    Args:
        name: A key of `ESTIMATORS`, or another name for `get_estimator`.
        whiten: Whether advantages are whitened, if the estimator does so
            (`get_estimator(name).whiten_over`). Returns never are.
        whiten_ids: [B] ids of any kind: rows with equal ids are whitened together; None: all.
        **arguments: Fields of `AdvantageArguments`, which has their shapes, dtypes and
            defaults. `rewards`, `loss_mask` and `attention_mask`, all [B, T], are required;
            an estimator may also need `values` (`needs_critic`), `turn_end_mask`
            (`needs_turn_end`), `group_ids` (`group_based`), `anchor_ids` (`needs_anchors`) or
            `baselines` (`needs_baselines`). Unused ones may be given.

    Returns:
        Advantages and returns, each [B, T] in the dtype of `rewards` (at least float32), 0 where
        there is no result, and metrics.

    Raises:
        AdvantageError: Unknown name of estimator or argument, missing or misshapen argument,
            inconsistent masks, a trajectory in several rows where the estimator cannot stitch them,
            a number that is not finite on a token the estimator reads, or a result too large for
            the dtype.
    """
    spec = get_estimator(name)
    inputs = checked_inputs(name, spec, _named(arguments))
    found = spec.function(inputs)
    if not found.advantages.shape == found.returns.shape == inputs.rewards.shape:
        raise AdvantageError(
            f"{name} found advantages {list(found.advantages.shape)} and returns "
            f"{list(found.returns.shape)}; both must be {list(inputs.rewards.shape)}"
        )
    advantages = found.advantages
    if whiten and spec.whiten_over is not None:
        advantages = _whitened(found.advantages, spec.mask, spec.whiten_over, inputs, whiten_ids)
    advantages, returns = (x.to(inputs.dtype) for x in (advantages, found.returns))
    for column, x in (("advantages", advantages), ("returns", returns)):
        require_rows(
            f"{column} of {name}",
            torch.isfinite(x.sum(1, dtype=torch.float64)),
            f"too large for {inputs.dtype}; give smaller rewards",
        )
    return found._replace(advantages=advantages, returns=returns)


def estimate_advantages(name: str, **arguments: Any) -> tuple[Tensor, Tensor]:
    """Advantages and returns, each [B, T]; otherwise like `estimate_with_metrics`.

    >>> row = torch.tensor([[0, 1, 1, 0, 1]])  # an observation, a turn, an observation, a turn
    >>> advantages_BT, returns_BT = estimate_advantages(
    ...     "masked_gae",
    ...     rewards=torch.tensor([[0.0, 0, 1, 0, 2]]),
    ...     values=torch.zeros(1, 5),
    ...     loss_mask=row,
    ...     attention_mask=torch.ones(1, 5),
    ...     gamma=0.5,
    ... )
    >>> returns_BT
    tensor([[0., 1., 2., 0., 2.]])
    """
    found = estimate_with_metrics(name, **arguments)
    return found.advantages, found.returns


def _named(arguments: dict[str, Any]) -> AdvantageArguments:
    known = {field.name: field for field in fields(AdvantageArguments)}
    for name in arguments:
        if name not in known:
            raise AdvantageError(unknown_name("argument", name, known))
    for name, field in known.items():
        if field.default is MISSING and arguments.get(name) is None:
            raise AdvantageError(f"`{name}` is needed by every estimator")
    return AdvantageArguments(**arguments)


EPSILON = 1e-8
"""Added to the variance."""


def whiten(
    x_BT: Tensor,
    mask_BT: Tensor,
    *,
    statistics_BT: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Shifts and scales `x_BT` to mean 0 and unbiased variance 1: `(x - mean) / sqrt(var + 1e-8)`.

    With fewer than two tokens only the mean is subtracted. Mean and variance are over all rows, in
    float64.

    Args:
        x_BT: [B, T] floats.
        mask_BT: [B, T] bool, tokens of the result; it is 0 elsewhere.
        statistics_BT: [B, T] bool, tokens of the statistics; None for `mask_BT`.
        dtype: Type of the result; None for that of `x_BT`.

    Returns:
        [B, T] floats.
    """
    sample_BT = mask_BT if statistics_BT is None else statistics_BT
    out = torch.zeros_like(x_BT, dtype=dtype)
    parts = list(row_slices(x_BT))
    count = int(sample_BT.sum())
    if count == 0:
        return out
    mean = sum(float(x_BT[p][sample_BT[p]].double().sum()) for p in parts) / count
    scale = 1.0
    if count > 1:
        squares = sum(float((x_BT[p][sample_BT[p]].double() - mean).square().sum()) for p in parts)
        scale = (squares / (count - 1) + EPSILON) ** -0.5
    for p in parts:
        out[p] = torch.where(mask_BT[p], (x_BT[p].double() - mean) * scale, 0.0)
    return out


def _whitened(
    raw: Tensor,
    mask_name: MaskName,
    statistics_name: MaskName,
    inputs: AdvantageInputs,
    ids: Sequence[Hashable] | None,
) -> Tensor:
    """Whitens rows with equal ids together; all rows without ids."""
    mask, statistics = inputs.mask(mask_name), inputs.mask(statistics_name)
    parts: list[Any] = [slice(None)]
    if ids is not None:
        numbers = numbered("whiten_ids", ids, len(mask)).to(mask.device)
        parts = [numbers == number for number in numbers.unique()]
    out = torch.empty_like(raw, dtype=inputs.dtype)
    for part in parts:
        out[part] = whiten(
            raw[part], mask[part], statistics_BT=statistics[part], dtype=inputs.dtype
        )
    return out


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


ENTRY_POINTS = "vagen.estimators"
"""Entry point group for estimators of installed packages."""


def get_estimator(name: str) -> EstimatorSpec:
    """The estimator with a name: a key of `ESTIMATORS`, `module:function`, or an entry point.

    Raises:
        AdvantageError: No estimator has that name (the message gives the nearest), or the function
            cannot be imported or is not declared an `estimator`.
    """
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    points = {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    place = points[name].value if name in points else name
    module, colon, function = place.partition(":")
    if not colon:
        raise AdvantageError(
            f"{unknown_name('estimator', name, [*ESTIMATORS, *points])} (one of your own is "
            "written module:function)"
        )
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, TypeError) as error:
        raise AdvantageError(
            f"the estimator {name!r} cannot be loaded: {error}; it is written module:function, and "
            "its module must be installed or on PYTHONPATH"
        ) from error
    if not isinstance(found, EstimatorSpec):
        raise AdvantageError(
            f"the estimator {name!r} is not declared one; write @vagen.advantage.estimator(...) "
            "above it, with what it reads"
        )
    return found
