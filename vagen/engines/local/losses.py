"""Losses of one micro batch of packed rows.

Shape legend: N tokens of a packed line, M action tokens of a line, V vocabulary.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from vagen.config.schema import ActorConfig
from vagen.engines.local.packing import PackedRows
from vagen.engines.objectives import Loss, actor_objective, critic_objective
from vagen.learning import entropy_from_logits
from vagen.rollout.types import TokenRow


def action_logprobs(logits: Tensor, packed: PackedRows, temperature: float) -> Tensor:
    """Log-probabilities of the action tokens, float32 [M].

    Args:
        logits: float32 [M, V], each from the token before an action token.
        packed: The rows.
        temperature: The rollout's temperature; 0 (greedy) is treated as 1.
    """
    logprobs = torch.log_softmax(_tempered(logits, temperature), -1)
    return logprobs.gather(-1, packed.targets[:, None])[:, 0]


def actor_loss(
    logits: Tensor,
    rows: Sequence[TokenRow],
    packed: PackedRows,
    denominator: Tensor,
    *,
    config: ActorConfig,
    temperature: float,
    entropy_coeff: float,
) -> Loss:
    """`actor_objective` from logits float32 [M, V], each from the token before an action token."""
    logits = _tempered(logits, temperature)
    return actor_objective(
        action_logprobs(logits, packed, 1.0),
        entropy_from_logits(logits),
        partial(packed.gather, rows),
        row_ids=packed.row_of,
        denominator=denominator,
        config=config,
        entropy_coeff=entropy_coeff,
    )


def critic_loss(
    after: Tensor,
    rows: Sequence[TokenRow],
    packed: PackedRows,
    denominator: Tensor,
    *,
    cliprange_value: float,
    value_shift: float = 0.0,
) -> Loss:
    """`critic_objective` from the critic's value after each token of the line, float32 [N]."""
    return critic_objective(
        after,
        partial(packed.line, rows),
        denominator=denominator,
        cliprange_value=cliprange_value,
        value_shift=value_shift,
    )


def _tempered(logits: Tensor, temperature: float) -> Tensor:
    """Logits at the sampling temperature."""
    return logits if temperature in (0, 1) else logits / temperature
