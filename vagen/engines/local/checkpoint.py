"""Weights, adapters and optimizer state as safetensors: no pickle, bit-exact.

Tensors are copied before they are written, so that training can continue meanwhile.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from vagen.engines.local.masters import MasterWeights
from vagen.models.lora import has_adapters, merged_state

Files = dict[str, dict[str, Tensor]]
"""Tensors by the name of their file; copies on the CPU."""


def host_copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU; no two share memory."""
    return {
        name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()
    }


def module_state(module: nn.Module) -> dict[str, Tensor]:
    """A copy of a module's weights with adapters merged; tied weights appear once."""
    return host_copy(merged_state(module))


def learner_files(
    name: str, module: nn.Module, masters: MasterWeights, optimizer: torch.optim.Optimizer
) -> Files:
    """The files a network needs, besides its merged weights, to resume training.

    `<name>_optimizer.safetensors`; with weights in another type than float32
    `<name>_masters.safetensors`; with adapters `<name>_adapters.safetensors`: all trained
    parameters, including a value head.
    """
    files = {f"{name}_optimizer.safetensors": _moments(optimizer, masters)}
    if masters.copies:
        files[f"{name}_masters.safetensors"] = host_copy(masters.copies)
    if has_adapters(module):
        files[f"{name}_adapters.safetensors"] = host_copy(_trained(module))
    return files


def load_learner(
    directory: Path,
    name: str,
    module: nn.Module,
    masters: MasterWeights,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Restores the state in `learner_files`.

    Raises:
        ValueError: The adapters belong to other layers.
    """
    _load_moments(directory / f"{name}_optimizer.safetensors", optimizer, masters)
    path = directory / f"{name}_masters.safetensors"
    masters.load(load_file(path) if masters.copies and path.is_file() else None)
    if has_adapters(module):
        path = directory / f"{name}_adapters.safetensors"
        trained, found = _trained(module), load_file(path)
        if trained.keys() != found.keys():
            odd = min(trained.keys() ^ found.keys())
            raise ValueError(f"{path} has other adapters: {odd} is not in both")
        with torch.no_grad():
            for key, value in found.items():
                trained[key].copy_(value)


def _moments(optimizer: torch.optim.Optimizer, masters: MasterWeights) -> dict[str, Tensor]:
    """Optimizer moments of every parameter, as `<parameter>|<moment>`."""
    names: dict[Tensor, str] = {p: name for name, p in masters.named.items()}
    return host_copy(
        {
            f"{names[parameter]}|{key}": value
            for parameter, state in optimizer.state.items()
            for key, value in state.items()
        }
    )


def _load_moments(path: Path, optimizer: torch.optim.Optimizer, masters: MasterWeights) -> None:
    """Restores the result of `_moments`; parameters without saved state get none."""
    optimizer.state.clear()
    for name, value in load_file(path).items():
        parameter_name, key = name.split("|")
        parameter = masters.named[parameter_name]
        fused = optimizer.defaults["fused"]  # it counts steps where the weights are
        place = "cpu" if key == "step" and not fused else parameter.device
        optimizer.state[parameter][key] = value.to(place)


def _trained(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: value for name, value in module.named_parameters() if value.requires_grad}
