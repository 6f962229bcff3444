"""Low-rank adapters (LoRA, Hu et al. 2021, section 4.1).

A linear layer with frozen weight W and an adapter computes W x + alpha / rank * B A x. A is random,
B starts at 0, so fresh adapters do not change the model. `peft` implements the arithmetic; it is
imported only if adapters are used.
"""

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from vagen.config.schema import ALL_LINEAR, LoraConfig
from vagen.models import ModelError

ADAPTER = "default"
"""Name of the adapter in `peft`, and thus in parameter names."""


def adapted_layers(model: Any, target_modules: str | Sequence[str]) -> dict[str, nn.Linear]:
    """The linear layers that match `target_modules`, by full name.

    Args:
        model: A `transformers` model, or its backbone.
        target_modules: Full names of layers or their last parts (`q_proj` matches in every block),
            also with wildcards (`layers.2?.*_proj`: blocks 20 to 29); or `all-linear`: all but the
            output layer.

    Raises:
        ModelError: A name matches no linear layer, or one whose weight is tied to the embedding.
    """
    linear = {n: layer for n, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    output = model.get_output_embeddings()
    if target_modules == ALL_LINEAR:
        return {name: layer for name, layer in linear.items() if layer is not output}
    wanted = [target_modules] if isinstance(target_modules, str) else target_modules
    chosen = {}
    for target in wanted:
        found = {n: layer for n, layer in linear.items() if fnmatchcase(f".{n}", f"*.{target}")}
        if not found:
            last = {name.rpartition(".")[2] for name in linear}
            known = sorted(name for name in last if not name.isdigit())
            raise ModelError(
                f"target_modules: {type(model).__name__} has no linear layer {target!r}; there are "
                f"{', '.join(known)}, or {ALL_LINEAR}"
            )
        chosen |= found
    embedding = model.get_input_embeddings()
    for name, layer in chosen.items():
        if layer.weight is embedding.weight:
            raise ModelError(
                f"target_modules: the weight of {name} is that of the input embedding "
                "(tie_word_embeddings), an adapter would separate them; leave it out"
            )
    return chosen


def add_adapters(model: Any, config: LoraConfig, *, seed: int) -> None:
    """Adds adapters to layers of a model in place and freezes all other weights.

    Adapters are float32 for any type of weights.

    Args:
        model: A `transformers` model, or its backbone.
        config: Rank (at least 1), alpha and which layers.
        seed: Seed of A's initialisation.

    Raises:
        ModelError: See `adapted_layers`.
    """
    import peft
    from peft.tuners.tuners_utils import cast_adapter_dtype

    options = peft.LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        target_modules=list(adapted_layers(model, config.target_modules)),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(options, model, adapter_name=ADAPTER)
    cast_adapter_dtype(model, ADAPTER)
    model.eval()


def adapter_parameters(model: Any, config: LoraConfig) -> int:
    """Number of weights that `add_adapters` would add."""
    layers = adapted_layers(model, config.target_modules).values()
    return sum(config.lora_rank * (layer.in_features + layer.out_features) for layer in layers)


def has_adapters(module: nn.Module) -> bool:
    """Whether any layer has an adapter."""
    return next(_adapted(module), None) is not None


@torch.no_grad()
def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """The state of a module with adapters merged into the weights.

    Names and shapes are those of the module without adapters; without any it is `state_dict`.
    Merged weights are on the CPU in the type of the base: in float32 the merged model equals the
    adapted one up to rounding, in bfloat16 less closely. The module is not changed.
    """
    merged = {f"{layer}.weight" for layer, _ in _adapted(module)}
    return {
        name: weight.cpu() if name in merged else weight for name, weight in merged_weights(module)
    }


@torch.no_grad()
def merged_weights(
    module: nn.Module,
    whole: Callable[[Tensor], Tensor] = lambda weight: weight,
    dtype: torch.dtype | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """Yields `merged_state` weight by weight, each gathered by `whole`.

    Args:
        module: Any module; its weights may be sharded over ranks.
        whole: Gathers a weight of `state_dict`; called in the same order on every rank.
        dtype: Type of the result; None for that of each weight. Weights without adapters are
            rounded before they are gathered.
    """
    state, layers = module.state_dict(), dict(_adapted(module))
    for name, value in state.items():
        if ".lora_" in name:
            continue
        layer, _, kind = name.partition(".base_layer.")
        target = dtype if dtype is not None and value.is_floating_point() else value.dtype
        if kind == "weight" and layer in layers:
            weight = whole(value)
            a, b = (whole(state[f"{layer}.lora_{half}.{ADAPTER}.weight"]) for half in "AB")
            delta = (b @ a) * layers[layer].scaling[ADAPTER]
            weight = (weight.float() + delta.float()).to(target)
        else:
            weight = whole(value.to(target))
        yield name.replace(".base_layer.", "."), weight


def _adapted(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Layers with an adapter, and their names."""
    for name, layer in module.named_modules():
        if hasattr(layer, "lora_A"):
            yield name, layer
