"""Image inputs of a model, each distinct image encoded once, and a cheaper patch embedding.

The frames of a batch repeat: a turn that changes nothing shows the same picture again, and episodes
of one level begin alike. The vision tower of the Qwen-VL families is given every distinct image
once; a hook lays its features out for every place that shows the image, and gradients flow back
through it. Frames of one size, the usual case, are attended to as one batch, and what depends on
their size alone is computed once.
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
"""Keyword argument of the backbone that carries `SharedImages` to the vision tower."""


@dataclass(frozen=True, slots=True)
class SharedImages:
    """Which of the distinct images each shown image is."""

    grids: Tensor
    """int64 [distinct, 3]: patch grids of the images whose pixels are given."""
    index: Tensor
    """int64 [image tokens]: feature of the distinct images that stands at each image token."""
    patches: int | None
    """Patches of each distinct image if all are of one size."""


def freeze_tower(model: Any) -> None:
    """Lets the vision tower of a model learn no more; does nothing to a model without one."""
    tower = getattr(model.model, "visual", None)
    if tower is not None:
        tower.requires_grad_(False)


def image_inputs(
    images: Sequence[ProcessedImage], processor: Processor, device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    """Keyword arguments of the backbone for the images of a batch, in the order they are shown.

    Args:
        images: Equal images should be one object, as `Processor.process_image` gives them.
        processor: Of the model that will read them.
        device: Of the model.
        dtype: Of the pixel values.
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

    Weights, their names and the results stay what they were. A model without a vision tower is left
    alone, and so is one that is prepared already.

    Args:
        model: A `transformers` model with `model` (backbone).
    """
    for module in model.modules():
        if type(module) is nn.Conv3d and module.kernel_size == module.stride:
            module.__class__ = PatchConv
    tower = getattr(model.model, "visual", None)
    if tower is not None and _lay_out not in tower._forward_hooks.values():
        tower.register_forward_pre_hook(_distinct_images, with_kwargs=True)
        tower.register_forward_hook(_lay_out, with_kwargs=True)


class PatchConv(nn.Conv3d):
    """A convolution over patches that are cut out already: one matrix product."""

    def forward(self, input: Tensor) -> Tensor:
        """Patches [N, channels, time, height, width] to [N, out, 1, 1, 1]."""
        if input.shape[2:] != self.kernel_size or self.groups != 1:
            return super().forward(input)
        out = nn.functional.linear(input.flatten(1), self.weight.flatten(1), self.bias)
        return out[..., None, None, None]


def _distinct_images(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Before the tower: the grids are those of the distinct images."""
    shared = kwargs.get(SHARED)
    if shared is None:
        return args, kwargs
    kwargs = {**kwargs, "grid_thw": shared.grids}
    if shared.patches is not None:
        kwargs |= _positions_of_equals(module, shared)
    return args, kwargs


def _positions_of_equals(tower: Any, shared: SharedImages) -> dict[str, Tensor]:
    """What the tower would compute from the grids of images of one size, one after the other."""
    assert shared.patches is not None
    count, one = len(shared.grids), shared.grids[:1]
    ends = torch.tensor([0, count * shared.patches], dtype=torch.int32, device=one.device)
    found = {
        "position_ids": get_vision_position_ids(one, tower.spatial_merge_size).repeat(count, 1),
        "cu_seqlens": ends,  # one piece: `packed_attention` tells the images apart
    }
    if hasattr(tower, "num_grid_per_side"):
        indices, weights = get_vision_bilinear_indices_and_weights(
            one, tower.num_grid_per_side, tower.spatial_merge_size
        )
        found["bilinear_indices"] = indices.repeat(1, count)
        found["bilinear_weights"] = weights.repeat(1, count)
    return found


def _lay_out(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """After the tower: features for every image token of the batch."""
    shared = kwargs.get(SHARED)
    if shared is not None:
        output.pooler_output = output.pooler_output.index_select(0, shared.index)
        if getattr(output, "deepstack_features", None):
            output.deepstack_features = [
                features.index_select(0, shared.index) for features in output.deepstack_features
            ]
    return output
