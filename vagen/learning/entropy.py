"""Entropy of the policy's next-token distribution, and the controller of the entropy bonus."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def entropy_from_logits(logits: Tensor) -> Tensor:
    """`-sum_v p_v log p_v`; a banned token (logit minus infinity) adds 0, also to the gradient.

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


@dataclass(slots=True)
class EntropyController:
    """Keeps entropy from falling below a target (Skywork-OR1, arXiv 2505.22312).

    After each update `coeff` moves by `step`, up if the entropy was below the target, down if it
    was above, within 0 and `max_coeff`. It is the bonus's weight while the entropy is at most the
    target; above, there is no bonus. The paper measures the entropy of a batch before the update;
    this uses the entropy of the previous update.
    """

    target: float
    """Nats per token."""
    step: float
    max_coeff: float
    coeff: float
    """Initially the weight for the first update, before any entropy is known."""
    below: bool = True
    """Whether the last entropy was at most the target."""

    @property
    def weight(self) -> float:
        """Weight of the bonus in the next update."""
        return self.coeff if self.below else 0.0

    def update(self, entropy: float) -> None:
        """Adapts to the mean entropy of an update, nats per token.

        Ignores entropies that are not finite, which come from skipped steps.
        """
        if not math.isfinite(entropy):
            return
        self.below = entropy <= self.target
        moved = self.coeff + self.step * ((entropy < self.target) - (entropy > self.target))
        self.coeff = min(max(moved, 0.0), self.max_coeff)

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state for `load_state_dict`."""
        return {"coeff": self.coeff, "below": self.below}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state."""
        self.coeff, self.below = float(state["coeff"]), bool(state["below"])
