"""Float32 copies of weights that a network holds in another type, for its optimizer.

Neighbouring bfloat16 numbers are 2^-8 of their size apart: a usual step of 1e-6 rounds to no step
at all for nearly every weight. The network computes with rounded weights, gradients are summed and
optimizer steps are taken in float32 (Micikevicius et al., 2018, section 3.1).
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class MasterWeights:
    """The float32 weights of a network's trained parameters, by name.

    A parameter that is float32 is its own master. The gradient of another parameter is added to its
    master's as soon as it is complete, and is then freed.
    """

    def __init__(self, module: nn.Module):
        """Copies the trained parameters; those that `requires_grad` now."""
        self.named: dict[str, nn.Parameter] = {}
        """What an optimizer changes."""
        self.copies: dict[str, nn.Parameter] = {}
        """Those that are not the network's own parameters."""
        self._rounded: dict[str, nn.Parameter] = {}
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            master = parameter
            if parameter.dtype != torch.float32:
                master = nn.Parameter(parameter.detach().float())
                self.copies[name], self._rounded[name] = master, parameter
                parameter.register_post_accumulate_grad_hook(_adds_to(master))
            self.named[name] = master

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What an optimizer changes."""
        return list(self.named.values())

    @torch.no_grad()
    def publish(self) -> None:
        """Rounds the masters into the network, after they were changed."""
        if self.copies:
            torch._foreach_copy_(list(self._rounded.values()), list(self.copies.values()))

    @torch.no_grad()
    def load(self, values: Mapping[str, Tensor] | None) -> None:
        """Restores the copies, and the network from them.

        Args:
            values: Float32 values by name; None takes the network's own weights.

        Raises:
            ValueError: They belong to another network.
        """
        if values is not None and (odd := values.keys() ^ self.copies.keys()):
            raise ValueError(f"master weights of another network: {min(odd)} is not in both")
        for name, master in self.copies.items():
            master.copy_(self._rounded[name] if values is None else values[name])
        self.publish()


def _adds_to(master: nn.Parameter):
    def add(parameter: Tensor) -> None:
        assert parameter.grad is not None
        gradient = parameter.grad.float()
        master.grad = gradient if master.grad is None else master.grad.add_(gradient)
        parameter.grad = None

    return add
