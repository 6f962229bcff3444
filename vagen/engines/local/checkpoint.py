"""Weights, adapters and optimizer state as safetensors: no pickle, bit-exact."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from vagen.models.lora import has_adapters, merged_state


def save_optimizer(path: Path, optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
    """Writes the moments of every parameter by name."""
    names: dict[torch.Tensor, str] = {p: name for name, p in module.named_parameters()}
    tensors = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            tensors[f"{names[parameter]}|{key}"] = value.detach().cpu().contiguous()
    save_file(tensors, path)


def load_optimizer(path: Path, optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
    """Restores what `save_optimizer` wrote; parameters that had no state yet have none."""
    parameters = dict(module.named_parameters())
    optimizer.state.clear()
    for name, value in load_file(path).items():
        parameter_name, key = name.split("|")
        parameter = parameters[parameter_name]
        place = "cpu" if key == "step" else parameter.device
        optimizer.state[parameter][key] = value.to(place)


def save_module(path: Path, module: nn.Module) -> None:
    """Writes a module's weights, adapters merged; tied ones once each."""
    save_file(
        {name: value.detach().cpu().clone() for name, value in merged_state(module).items()}, path
    )


def load_module(path: Path, module: nn.Module) -> None:
    """Restores what `save_module` wrote."""
    module.load_state_dict(load_file(path))


def save_learner(
    directory: Path, name: str, module: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Writes what a network needs to go on learning beside its (merged) weights.

    `<name>_optimizer.safetensors`, and if there are adapters, `<name>_adapters.safetensors`: every
    parameter that is trained, a value head too.
    """
    save_optimizer(directory / f"{name}_optimizer.safetensors", optimizer, module)
    if has_adapters(module):
        trained = {key: value.detach().cpu() for key, value in _trained(module).items()}
        save_file(trained, directory / f"{name}_adapters.safetensors")


def load_learner(
    directory: Path, name: str, module: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Restores what `save_learner` wrote.

    Raises:
        ValueError: The adapters are of other layers.
    """
    load_optimizer(directory / f"{name}_optimizer.safetensors", optimizer, module)
    if has_adapters(module):
        path = directory / f"{name}_adapters.safetensors"
        trained, found = _trained(module), load_file(path)
        if trained.keys() != found.keys():
            odd = min(trained.keys() ^ found.keys())
            raise ValueError(f"{path} is of other adapters: {odd} is not in both")
        with torch.no_grad():
            for key, value in found.items():
                trained[key].copy_(value)


def _trained(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: value for name, value in module.named_parameters() if value.requires_grad}
