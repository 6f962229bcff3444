"""Image inputs that encode each distinct image once, and a vision tower made fit for batches.

The frames of a batch repeat: a turn may change nothing, and episodes of one level begin with the
same frame. The vision tower encodes every distinct image once; its features are copied to every
place that shows the image, and gradients flow back through the copies.

`transformers` attends to images that are grids of patches, and to the windows of Qwen2.5-VL, one
after another in a Python loop unless the attention is flash-attn's: 256 calls for one frame of
252 x 252. Here one call attends to all images or windows of one size. What depends on an image's
size alone is computed once per size.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, vision_utils
from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

from vagen.models.families import Grid, tower_parts
from vagen.models.processor import ProcessedImage, Processor

SHARED = "shared_images"
"""Keyword argument of the backbone, int64 [image tokens]: index of each image token's feature among
those of the distinct images."""
IN_BATCHES = "flash_in_batches"
"""Name of `batched_attention` in the registry of `transformers`, which passes the boundaries of
images and windows to an attention whose name contains "flash", and loops over them otherwise."""


def freeze_tower(model: Any) -> None:
    """Freezes the vision tower of a model with its projector, if it has one."""
    for part in tower_parts(model.model):
        part.requires_grad_(False)


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
    distinct = list({id(image): image for image in images}.values())
    places: dict[int, Tensor] = {}
    tokens = 0
    for image in distinct:
        places[id(image)] = torch.arange(tokens, tokens + image.tokens)
        tokens += image.tokens
    pixels = torch.cat([torch.from_numpy(image.pixel_values) for image in distinct])
    return {
        **processor.family.inputs(pixels.to(device, dtype), [image.grid for image in distinct]),
        SHARED: torch.cat([places[id(image)] for image in images]).to(device),
    }


def prepare_vision(model: Any) -> None:
    """Makes a model's vision tower share images, attend in batches, and embed patches by a matrix
    product.

    Weights, their names and results do not change. Idempotent; does nothing without a vision tower.

    Args:
        model: A `transformers` model with `model` (backbone).
    """
    for module in model.modules():
        if type(module) is nn.Conv3d and module.kernel_size == module.stride:
            module.__class__ = PatchConv
    backbone = model.model
    parts = tower_parts(backbone)
    if parts and _take_index not in backbone._forward_pre_hooks.values():
        backbone.register_forward_pre_hook(_take_index, with_kwargs=True)
        backbone.get_image_features = partial(_shared_features, backbone)
        tower = parts[0]
        tower.config._attn_implementation = "sdpa"  # not the decoder's
        if hasattr(tower, "spatial_merge_size"):  # grids of patches
            tower.config._attn_implementation = IN_BATCHES
            tower.register_forward_pre_hook(_lay_out, with_kwargs=True)


def _take_index(
    backbone: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Pre-hook of the backbone: keeps the index for `_shared_features`."""
    backbone.shared_images = kwargs.pop(SHARED, None)
    return args, kwargs


def _shared_features(backbone: Any, *args: Any, **kwargs: Any) -> Any:
    """Replaces `get_image_features`: copies features to every image token of the batch."""
    output = type(backbone).get_image_features(backbone, *args, **kwargs)
    index = backbone.shared_images
    if index is not None:
        output.pooler_output = _copied(output.pooler_output, index)
        if getattr(output, "deepstack_features", None):
            output.deepstack_features = [_copied(of, index) for of in output.deepstack_features]
    return output


def _copied(features: Any, index: Tensor) -> Any:
    """The features that the index names.

    They are [tiles, tokens, hidden] or [tokens, hidden]; or [tokens, hidden] of each image, which
    `transformers` lays end to end.
    """
    if not isinstance(features, Tensor):
        return [torch.cat(tuple(features)).index_select(0, index)]
    line = features.flatten(0, -2).index_select(0, index)
    return line.unflatten(0, (-1, *features.shape[1:-1]))


class PatchConv(nn.Conv3d):
    """A convolution over separate patches as one matrix product."""

    def forward(self, input: Tensor) -> Tensor:
        """Patches [N, channels, time, height, width] to [N, out, 1, 1, 1]."""
        if input.shape[2:] != self.kernel_size or self.groups != 1:
            return super().forward(input)
        out = nn.functional.linear(input.flatten(1), self.weight.flatten(1), self.bias)
        return out[..., None, None, None]


def _lay_out(
    tower: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Pre-hook of the tower: adds what depends on the sizes of the images."""
    grids = kwargs.get("grid_thw")
    if grids is None:  # features in the place of pixels
        return args, kwargs
    found = [tuple(grid) for grid in grids.tolist()]
    return args, {**kwargs, **tower_inputs(tower, found, args[0].device)}


def tower_inputs(tower: Any, grids: Sequence[Grid], device: torch.device) -> dict[str, Tensor]:
    """Keyword arguments of a tower that depend on the images' sizes alone.

    Args:
        tower: The vision tower of Qwen2-VL, Qwen2.5-VL, Qwen3-VL or a family with its interface.
        grids: Grids of the images.
        device: The tower's device.

    Returns:
        Among others the boundaries of images and windows, on the CPU, where `batched_attention`
        reads them; on the device for towers that compute with them.
    """
    config = tower.config
    lengths = [t * h * w for t, h, w in grids]
    frames = [h * w for t, h, w in grids for _ in range(t)]
    found = {
        "grid_thw": torch.tensor(grids),
        "cu_seqlens": _boundaries(frames),
        "position_ids": torch.cat([_positions(g, config.spatial_merge_size) for g in grids]),
    }
    if hasattr(tower, "num_grid_per_side"):
        size = (config.spatial_merge_size, tower.num_grid_per_side)
        if hasattr(tower, "interpolation_mode"):
            names, axis = ("interp_indices", "interp_weights"), 0
            size += (tower.interpolation_mode, tower.interpolation_align_corners)
        else:  # transformers 5.10, the newest that verl takes
            names, axis = ("bilinear_indices", "bilinear_weights"), 1
        parts = zip(*(_interpolated(grid, *size) for grid in grids), strict=True)
        found |= {name: torch.cat(part, axis) for name, part in zip(names, parts, strict=True)}
    if hasattr(tower, "window_size"):
        unit = config.spatial_merge_size**2
        windows, start = [], 0
        for grid, length in zip(grids, lengths, strict=True):
            size = (config.spatial_merge_size, tower.window_size, config.patch_size)
            windows += [window + start for window in _windows(grid, *size)]
            start += length // unit
        found["window_index"] = torch.cat(windows)
        found["cu_window_seqlens"] = _boundaries([len(window) * unit for window in windows])
    on_cpu = () if hasattr(tower, "embeddings") else ("cu_seqlens", "cu_window_seqlens")
    return {name: value if name in on_cpu else value.to(device) for name, value in found.items()}


def _boundaries(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


@lru_cache(maxsize=256)
def _positions(grid: Grid, merge: int) -> Tensor:
    return get_vision_position_ids(torch.tensor([grid]), merge)


@lru_cache(maxsize=256)
def _interpolated(grid: Grid, merge: int, per_side: int, *how: Any) -> tuple[Tensor, Tensor]:
    if how:
        # pyrefly: ignore[missing-attribute]
        of = vision_utils.get_vision_interpolation_indices_and_weights
        return of(torch.tensor([grid]), per_side, *how, spatial_merge_size=merge)
    return vision_utils.get_vision_bilinear_indices_and_weights(
        torch.tensor([grid]), per_side, merge
    )


@lru_cache(maxsize=256)
def _windows(grid: Grid, merge: int, window: int, patch: int) -> tuple[Tensor, ...]:
    """The merged patches of each window of an image."""
    index, ends = get_vision_window_index(torch.tensor([grid]), merge, window, patch)
    return index.split((ends.diff() // merge**2).tolist())


def batched_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float | None = None,
    dropout: float = 0.0,
    cu_seq_lens_q: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention inside each image or window; those of one length are one batch.

    Args:
        module: The attention module of a vision tower; unused.
        query: [1, H, N, D]: N patches of all images.
        key: Likewise.
        value: Likewise.
        attention_mask: None.
        scaling: Factor of the products.
        dropout: Share of attention weights that are dropped.
        cu_seq_lens_q: int32 [images or windows + 1]: their boundaries among the patches.
        kwargs: Further arguments of `transformers`; unused.

    Returns:
        [1, N, H, D].
    """
    assert cu_seq_lens_q is not None
    groups, order, back = _batches(tuple(cu_seq_lens_q.diff().tolist()), query.device)
    out, begin = [], 0
    lines = [x[0] if order is None else x[0].index_select(1, order) for x in (query, key, value)]
    for length, count in groups:
        end = begin + length * count
        parts = [line[:, begin:end].unflatten(1, (count, length)).transpose(0, 1) for line in lines]
        found = scaled_dot_product_attention(*parts, dropout_p=dropout, scale=scaling)
        out.append(found.transpose(1, 2).flatten(0, 1))
        begin = end
    line = torch.cat(out)
    return (line if back is None else line.index_select(0, back))[None], None


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # a training saves the indices for its backward pass
def _batches(
    lengths: tuple[int, ...], device: torch.device
) -> tuple[list[tuple[int, int]], Tensor | None, Tensor | None]:
    """Lengths with their numbers; the order of patches that puts equal lengths together, and its
    inverse; None for both if they are together already.
    """
    groups = sorted(Counter(lengths).items())
    if len(groups) == 1:
        return groups, None, None
    pieces = torch.arange(sum(lengths)).split(lengths)
    order = torch.cat(sorted(pieces, key=len))
    return groups, order.to(device), order.argsort().to(device)


AttentionInterface.register(IN_BATCHES, batched_attention)
