"""Log-probabilities and entropies from logits, in float32, in slices of tokens.

Replaces verl's functions. Without flash-attn those work token by token, in the network's bfloat16,
which is too coarse for the ratio of two policies. Here only one slice is in float32 at a time, also
in the backward pass.

Shape legend: N tokens laid end to end, V vocabulary.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from vagen.engines.verl.mapping import SLICE


def logprobs(logits: Tensor, labels: Tensor, inplace_backward: bool = True) -> Tensor:
    """Log-probability of each label, differentiable.

    Args:
        logits: [N, V], of any floating type.
        labels: int64 [N].
        inplace_backward: For flash-attn's kernel; ignored.

    Returns:
        float32 [N]; its gradient has the type of the logits.
    """
    return _LogProbs.apply(logits, labels)


def entropy(logits: Tensor) -> Tensor:
    """Entropy of each distribution in nats: logits [..., V] to float32 [...]."""
    return _Entropy.apply(logits.flatten(0, -2)).view(logits.shape[:-1])


def _slices(logits: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the tokens with float32 copies of their logits."""
    for start in range(0, len(logits), SLICE):
        part = slice(start, start + SLICE)
        yield part, logits[part].to(torch.float32, copy=True)


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        normalizer = torch.empty(len(logits), device=logits.device)
        chosen = torch.empty_like(normalizer)
        for part, values in _slices(logits):
            normalizer[part] = values.logsumexp(-1)
            chosen[part] = values.gather(-1, labels[part, None])[:, 0]
        ctx.save_for_backward(logits, labels, normalizer)
        return chosen - normalizer

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, None]:
        (gradient,) = outputs
        logits, labels, normalizer = ctx.saved_tensors
        found = torch.empty_like(logits)
        for part, values in _slices(logits):
            share = gradient[part, None]
            values.sub_(normalizer[part, None]).exp_().mul_(-share)
            found[part] = values.scatter_add_(-1, labels[part, None], share)
        return found, None


class _Entropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        normalizer = torch.empty(len(logits), device=logits.device)
        found = torch.empty_like(normalizer)
        for part, values in _slices(logits):
            normalizer[part] = values.logsumexp(-1)
            mean = (values.softmax(-1) * values).sum(-1)
            found[part] = normalizer[part] - mean
        ctx.save_for_backward(logits, normalizer, found)
        return found

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Tensor:
        (gradient,) = outputs
        logits, normalizer, entropies = ctx.saved_tensors
        found = torch.empty_like(logits)
        for part, values in _slices(logits):
            logs = values.sub_(normalizer[part, None])
            found[part] = logs.exp() * (logs + entropies[part, None]) * -gradient[part, None]
        return found
