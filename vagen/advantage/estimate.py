"""Entry points: check the arguments, run the estimator, whiten.

Shape legend: B rows, T tokens of the padded row.
"""

from collections.abc import Hashable, Sequence
from dataclasses import MISSING, fields
from typing import Any

import torch
from torch import Tensor

from vagen.advantage.checks import checked_inputs
from vagen.advantage.inputs import AdvantageArguments, AdvantageEstimate
from vagen.advantage.registry import get_estimator
from vagen.advantage.rows import AdvantageError, numbered, require_rows
from vagen.advantage.whitening import whiten as whitened
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
        mask, statistics = inputs.mask(spec.mask), inputs.mask(spec.whiten_over)
        parts: list[Any] = [slice(None)]
        if whiten_ids is not None:
            ids = numbered("whiten_ids", whiten_ids, len(mask)).to(mask.device)
            parts = [ids == number for number in ids.unique()]
        advantages = torch.empty_like(found.advantages, dtype=inputs.dtype)
        for part in parts:
            advantages[part] = whitened(
                found.advantages[part],
                mask[part],
                statistics_BT=statistics[part],
                dtype=inputs.dtype,
            )
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
