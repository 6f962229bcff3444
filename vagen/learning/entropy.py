"""Entropy of the policy's next-token distribution."""

import torch
from torch import Tensor


def entropy_from_logits(logits: Tensor) -> Tensor:
    """`-sum_v p_v log p_v`; a banned token (logit minus infinity) adds 0, to the gradient too.

    Args:
        logits: [..., V] floats; at least one per position is finite.

    Returns:
        [...] nats, at least float32. `aggregate` it with the loss mask and subtract
        `entropy_coeff` times that from the loss.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    finite = logits.masked_fill(torch.isneginf(logits), torch.finfo(logits.dtype).min)
    logprobs = torch.log_softmax(finite, dim=-1)
    return -(logprobs.exp() * logprobs).sum(-1)
