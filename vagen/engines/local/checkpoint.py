"""Optimizer state as safetensors: no pickle, bit-exact."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn


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
    """Writes a module's weights; tied ones once each."""
    save_file(
        {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}, path
    )


def load_module(path: Path, module: nn.Module) -> None:
    """Restores what `save_module` wrote."""
    module.load_state_dict(load_file(path))


def write_json(path: Path, content: dict[str, object]) -> None:
    """Writes small state."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
