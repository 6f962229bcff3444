"""A network with its optimizer, and both as safetensors: no pickle, bit-exact.

Tensors are copied before they are written, so that training can continue meanwhile.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from vagen.config.schema import OptimConfig
from vagen.engines.base import Step
from vagen.engines.local.masters import MasterWeights
from vagen.engines.local.packing import PackedRows, TokenMask
from vagen.engines.objectives import Loss
from vagen.models.lora import has_adapters, merged_state
from vagen.rollout.types import TokenRow

LossOf = Callable[[Sequence[TokenRow], PackedRows, Step], Loss]
"""The loss of one micro batch."""


def host_copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU; no two share memory."""
    return {
        name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()
    }


def module_state(module: nn.Module) -> dict[str, Tensor]:
    """A copy of a module's weights with adapters merged; tied weights appear once."""
    return host_copy(merged_state(module))


class Learner:
    """A network with its optimizer and its loss."""

    def __init__(self, module: nn.Module, config: OptimConfig, loss: LossOf, mask: TokenMask):
        self.module, self.loss, self.mask = module, loss, mask
        self.masters = MasterWeights(module)
        weights = self.masters.parameters
        self.optimizer = torch.optim.AdamW(
            weights,
            lr=config.lr,
            betas=config.betas,
            weight_decay=config.weight_decay,
            fused=weights[0].is_cuda,
        )

    def files(self, name: str) -> dict[str, dict[str, Tensor]]:
        """Tensors, by the name of their file, that resuming needs besides the merged weights.

        `<name>_optimizer.safetensors` has moments as `<parameter>|<moment>`; with weights in
        another type than float32 there is `<name>_masters.safetensors`; with adapters
        `<name>_adapters.safetensors`: all trained parameters, including a value head.
        """
        names: dict[Tensor, str] = {p: name for name, p in self.masters.named.items()}
        moments = {
            f"{names[parameter]}|{key}": value
            for parameter, state in self.optimizer.state.items()
            for key, value in state.items()
        }
        files = {f"{name}_optimizer.safetensors": host_copy(moments)}
        if self.masters.copies:
            files[f"{name}_masters.safetensors"] = host_copy(self.masters.copies)
        if has_adapters(self.module):
            files[f"{name}_adapters.safetensors"] = host_copy(self._trained())
        return files

    def load(self, directory: Path, name: str) -> None:
        """Restores `files`; parameters without saved moments get none.

        Raises:
            ValueError: The adapters belong to other layers.
        """
        self.optimizer.state.clear()
        fused = self.optimizer.defaults["fused"]  # it counts steps where the weights are
        for entry, value in load_file(directory / f"{name}_optimizer.safetensors").items():
            parameter_name, key = entry.split("|")
            parameter = self.masters.named[parameter_name]
            place = "cpu" if key == "step" and not fused else parameter.device
            self.optimizer.state[parameter][key] = value.to(place)
        path = directory / f"{name}_masters.safetensors"
        self.masters.load(load_file(path) if self.masters.copies and path.is_file() else None)
        if has_adapters(self.module):
            path = directory / f"{name}_adapters.safetensors"
            trained, found = self._trained(), load_file(path)
            if trained.keys() != found.keys():
                odd = min(trained.keys() ^ found.keys())
                raise ValueError(f"{path} has other adapters: {odd} is not in both")
            with torch.no_grad():
                for key, value in found.items():
                    trained[key].copy_(value)

    def _trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}
