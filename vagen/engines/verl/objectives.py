"""Our objectives as loss functions of verl.

A worker calls them with its network's outputs on one micro batch. FSDP averages gradients over
ranks, so each rank's share is multiplied by their number.

Shape legend: N tokens of the micro batch's rows laid end to end, M action tokens.
"""

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from vagen.config.schema import ActorConfig
from vagen.engines.objectives import Loss, actor_objective, critic_objective
from vagen.engines.verl.rows import ACTIONS
from vagen.learning import Aggregate

PARTS = "vagen_parts"
"""Key of our metrics among verl's: sums with their weights."""

LossAndMetrics = tuple[Tensor, dict[str, dict[str, Aggregate]]]


def policy_loss(
    model_output: dict[str, Tensor], data: TensorDict, dp_group: Any = None, *, config: ActorConfig
) -> LossAndMetrics:
    """`actor_objective` of one micro batch, as verl's workers call it."""
    offsets = data["input_ids"].offsets()
    actions = data[ACTIONS].values().nonzero()[:, 0]
    rows = torch.repeat_interleave(
        torch.arange(len(offsets) - 1, device=actions.device), offsets.diff()
    )

    def column(name: str) -> Tensor:
        return data[f"column/{name}"].values()[actions]

    loss = actor_objective(
        model_output["log_probs"].values()[actions - 1],
        model_output["entropy"].values()[actions - 1],
        column,
        row_ids=rows[actions],
        denominator=torch.tensor(data["denominator"]),
        config=config,
        entropy_coeff=data["entropy_coeff"],
    )
    return _share(loss, data)


def value_loss(
    model_output: dict[str, Tensor], data: TensorDict, dp_group: Any = None
) -> LossAndMetrics:
    """`critic_objective` of one micro batch, as verl's workers call it."""
    column: Callable[[str], Tensor] = lambda name: data[f"column/{name}"].values()  # noqa: E731
    loss = critic_objective(
        model_output["values"].values(),
        column,
        denominator=torch.tensor(data["denominator"]),
        cliprange_value=data["cliprange_value"],
        value_shift=data["value_shift"],
    )
    return _share(loss, data)


def _share(loss: Loss, data: TensorDict) -> LossAndMetrics:
    value, metrics = loss
    cpu = {
        name: type(metric)(*(getattr(metric, slot).cpu() for slot in metric.__slots__))
        for name, metric in metrics.items()
    }
    return value * data["dp_size"], {PARTS: cpu}
