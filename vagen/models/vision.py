"""Image inputs that encode each distinct image once, and a cheaper patch embedding.

The frames of a batch repeat: a turn may change nothing, and episodes of one level begin with the
same frame. The vision tower of the Qwen-VL families encodes every distinct image once; a hook
copies its features to every place that shows the image, and gradients flow back through it. Frames
of equal size, the usual case, are one batch for attention, and size-dependent values are computed
once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.vision_utils import (
    get_vision_bilinear_indices_and_weights,
    get_vision_position_ids,
)

from vagen.models.processor import ProcessedImage, Processor

SHARED = "shared_images"
"""Keyword argument of the backbone that passes `SharedImages` to the vision tower."""


@dataclass(frozen=True, slots=True)
class SharedImages:
    """Maps shown images to distinct images."""

    grids: Tensor
    """int64 [distinct, 3]: patch grids of the distinct images."""
    index: Tensor
    """int64 [image tokens]: index into the features of the distinct images."""
    patches: int | None
    """Patches per distinct image if all have the same size."""


def freeze_tower(model: Any) -> None:
    """Freezes the vision tower of a model, if it has one."""
    tower = getattr(model.model, "visual", None)
    if tower is not None:
        tower.requires_grad_(False)


def image_inputs(
    images: Sequence[ProcessedImage], processor: Processor, device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    """Keyword arguments of the backbone for a batch's images, in the order they are shown.

    Args:
        images: Equal images should be the same object, as from `Processor.process_image`.
        processor: Processor of the model.
        device: The model's device.
        dtype: Type of the pixel values.
    """
    if not images:
        return {}
    distinct = list(images)
    inputs: dict[str, Any] = {"image_grid_thw": torch.tensor([i.grid for i in images]).to(device)}
    if processor.uses_mrope:
        distinct = list({id(image): image for image in images}.values())
        sizes = {image.grid for image in distinct}
        places: dict[int, Tensor] = {}
        tokens = 0
        for image in distinct:
            count = processor.image_length(image.grid)
            places[id(image)] = torch.arange(tokens, tokens + count)
            tokens += count
        inputs[SHARED] = SharedImages(
            grids=torch.tensor([image.grid for image in distinct]).to(device),
            index=torch.cat([places[id(image)] for image in images]).to(device),
            patches=len(distinct[0].pixel_values) if len(sizes) == 1 else None,
        )
    pixels = torch.cat([torch.from_numpy(image.pixel_values) for image in distinct])
    inputs["pixel_values"] = pixels.to(device, dtype)
    return inputs


def prepare_vision(model: Any) -> None:
    """Makes a model's vision tower share images and embed patches by a matrix product.

    Weights, their names and results do not change. Idempotent; does nothing without a vision tower.

    Args:
        model: A `transformers` model with `model` (backbone).
    """
    for module in model.modules():
        if type(module) is nn.Conv3d and module.kernel_size == module.stride:
            module.__class__ = PatchConv
    tower = getattr(model.model, "visual", None)
    if tower is not None and _expand not in tower._forward_hooks.values():
        tower.register_forward_pre_hook(_distinct_images, with_kwargs=True)
        tower.register_forward_hook(_expand, with_kwargs=True)


class PatchConv(nn.Conv3d):
    """A convolution over separate patches as one matrix product."""

    def forward(self, input: Tensor) -> Tensor:
        """Patches [N, channels, time, height, width] to [N, out, 1, 1, 1]."""
        if input.shape[2:] != self.kernel_size or self.groups != 1:
            return super().forward(input)
        out = nn.functional.linear(input.flatten(1), self.weight.flatten(1), self.bias)
        return out[..., None, None, None]


def _distinct_images(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Pre-hook of the tower: replaces the grids by those of the distinct images."""
    shared = kwargs.get(SHARED)
    if shared is None:
        return args, kwargs
    kwargs = {**kwargs, "grid_thw": shared.grids}
    if shared.patches is not None:
        kwargs |= _positions_of_equals(module, shared)
    return args, kwargs


def _positions_of_equals(tower: Any, shared: SharedImages) -> dict[str, Tensor]:
    """The tower's size-dependent values for images of equal size, laid end to end."""
    assert shared.patches is not None
    count, one = len(shared.grids), shared.grids[:1]
    ends = torch.tensor([0, count * shared.patches], dtype=torch.int32, device=one.device)
    found = {
        "position_ids": get_vision_position_ids(one, tower.spatial_merge_size).repeat(count, 1),
        "cu_seqlens": ends,  # `packed_attention` separates the images
    }
    if hasattr(tower, "num_grid_per_side"):
        indices, weights = get_vision_bilinear_indices_and_weights(
            one, tower.num_grid_per_side, tower.spatial_merge_size
        )
        found["bilinear_indices"] = indices.repeat(1, count)
        found["bilinear_weights"] = weights.repeat(1, count)
    return found


def _expand(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """Hook of the tower: copies features to every image token of the batch."""
    shared = kwargs.get(SHARED)
    if shared is not None:
        output.pooler_output = output.pooler_output.index_select(0, shared.index)
        if getattr(output, "deepstack_features", None):
            output.deepstack_features = [
                features.index_select(0, shared.index) for features in output.deepstack_features
            ]
    return output
