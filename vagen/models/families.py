"""How families of vision-language models read images: a class each.

To add a family, write a class here, name it in `FAMILIES`, and describe its tiny model in
`tests/image_families.py`: `tests/models/test_families.py` then holds it to the family's own
processor and forward pass.
"""

import math
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vagen.models import ModelError, first_line

if TYPE_CHECKING:
    from torch import Tensor

Grid = tuple[int, int, int]
"""Patches of an image along time (or its tiles), height and width."""
TOWER_PARTS = ("visual", "vision_model", "vision_tower", "connector", "multi_modal_projector")
"""Parts of a backbone that read images, as the families name them; a tower comes first."""


class Reading(NamedTuple):
    """An image as a model reads it."""

    pixels: NDArray[np.float32]
    """[patches, values], or [tiles, channels, height, width]."""
    grid: Grid
    text: str
    """Stands in the conversation in place of the image, before it is cut into tokens."""


class Family:
    """A family without images, and the defaults of those with images."""

    image = "<|image_pad|>"
    """Token of each feature of an image."""
    placeholder = image
    """Token that the chat template writes for an image."""
    marks = r"<\|(image|video|vision)_\w+\|>"
    """Pattern of the tokens that only images and videos bring into a conversation."""
    last: str | None = None
    """Token before the last run of image tokens of an image; None if an image is one run."""
    reader: tuple[str, str] | None = None
    """Module below `transformers.models` and class of the image processor."""
    patch_grids = False
    """Whether images of any size are one grid of patches, with rotary positions of three axes
    (M-RoPE); otherwise they are scaled to tiles of one size, and positions are a line."""
    bidirectional = False
    """Whether the tokens of an image attend to each other in both directions."""

    def __init__(self, config: Any):
        """Takes the `transformers` configuration of the model."""
        self.model_type: str = config.model_type
        self.image_token_id: int | None = getattr(config, "image_token_id", None)
        self.config = config

    @property
    def merge_size(self) -> int:
        """Rows and columns of patches that one token stands for."""
        return self.config.vision_config.spatial_merge_size if self.patch_grids else 1

    @property
    def patch_size(self) -> int:
        """Rows and columns of pixels of a patch."""
        return self._side("patch_size")

    @property
    def _tile_side(self) -> int:
        """Rows and columns of patches of a tile."""
        return self._side("image_size") // self.patch_size

    def _side(self, name: str) -> int:
        """A side of the vision tower's configuration, which some families write twice."""
        side = getattr(self.config.vision_config, name)
        return side[0] if isinstance(side, list | tuple) else side

    @property
    def processor_config(self) -> dict[str, Any]:
        """What `AutoProcessor` needs next to the files of tokenizer and image processor."""
        return {}

    def reader_class(self) -> Any:
        """The class of the image processor."""
        assert self.reader is not None
        module, name = self.reader
        return getattr(import_module(f"transformers.models.{module}"), name)

    def load_reader(self, path: str | Path) -> Any:
        """The image processor of a model directory or hub id.

        Not `AutoProcessor`, which also needs torchvision, for videos.

        Raises:
            ModelError: It does not exist.
        """
        try:
            return self.reader_class().from_pretrained(str(path))
        except (OSError, ValueError) as error:
            raise ModelError(
                f"{path}: no image processor could be loaded ({first_line(error)})"
            ) from error

    def read(self, reader: Any, image: Image.Image) -> Reading:
        """Reads an RGB image with the image processor."""
        raise NotImplementedError

    def inputs(self, pixels: "Tensor", grids: Sequence[Grid]) -> "dict[str, Tensor]":
        """Keyword arguments of the backbone for images, their pixels concatenated."""
        return {"pixel_values": pixels}

    def _tiles(self, pixels: NDArray[np.float32], text: str) -> Reading:
        """The reading of an image in tiles [tiles, channels, height, width]."""
        tiles, _, height, width = pixels.shape
        return Reading(pixels, (tiles, height // self.patch_size, width // self.patch_size), text)


class QwenVL(Family):
    """Qwen2-VL, Qwen2.5-VL and Qwen3-VL: a grid of patches."""

    reader = ("qwen2_vl.image_processing_pil_qwen2_vl", "Qwen2VLImageProcessorPil")
    patch_grids = True

    def read(self, reader: Any, image: Image.Image) -> Reading:  # noqa: D102
        found = reader(images=[image], return_tensors="np")
        grid: Any = tuple(int(side) for side in found["image_grid_thw"][0])
        text = self.image * (math.prod(grid) // self.merge_size**2)
        return Reading(found["pixel_values"], grid, text)

    def inputs(self, pixels: "Tensor", grids: Sequence[Grid]) -> "dict[str, Tensor]":  # noqa: D102
        import torch

        return {"pixel_values": pixels, "image_grid_thw": torch.tensor(grids).to(pixels.device)}


class Glm4v(QwenVL):
    """GLM-4.1V: a grid of patches too."""

    image = placeholder = "<|image|>"
    marks = r"<\|((begin|end)_of_)?(image|video)\|>"
    reader = ("glm4v.image_processing_pil_glm4v", "Glm4vImageProcessorPil")


class Glm46V(Glm4v):
    """GLM-4.6V, with an image processor of its own name."""

    reader = ("glm46v.image_processing_pil_glm46v", "Glm46VImageProcessorPil")


class SmolVLM(Family):
    """SmolVLM and Idefics3: tiles in rows and columns, then the whole image as one more."""

    image = placeholder = "<image>"
    marks = r"<image>|<fake_token_around_image>|<global-img>|<row_\d+_col_\d+>|<video>"
    last = "<global-img>"
    reader = ("smolvlm.image_processing_pil_smolvlm", "SmolVLMImageProcessorPil")

    @property
    def _length(self) -> int:
        """Image tokens of a tile."""
        return self._tile_side**2 // self.config.scale_factor**2

    @property
    def processor_config(self) -> dict[str, Any]:  # noqa: D102
        name = {"smolvlm": "SmolVLM", "idefics3": "Idefics3"}[self.model_type]
        return {"processor_class": f"{name}Processor", "image_seq_len": self._length}

    def read(self, reader: Any, image: Image.Image) -> Reading:  # noqa: D102
        found = reader(images=[image], return_tensors="np", return_row_col_info=True)
        rows, columns = found["rows"][0][0], found["cols"][0][0]
        around, tile = "<fake_token_around_image>", self.image * self._length
        text = ""
        for row in range(1, rows + 1):
            for column in range(1, columns + 1):
                text += f"{around}<row_{row}_col_{column}>{tile}"
            text += "\n"
        text += "\n" * bool(rows) + f"{around}<global-img>{tile}{around}"
        return self._tiles(found["pixel_values"][0], text)

    def inputs(self, pixels: "Tensor", grids: Sequence[Grid]) -> "dict[str, Tensor]":  # noqa: D102
        return {"pixel_values": pixels[None]}


class Idefics3(SmolVLM):
    """As SmolVLM, with an image processor of its own name."""

    reader = ("idefics3.image_processing_pil_idefics3", "Idefics3ImageProcessorPil")


class InternVL(Family):
    """InternVL3 and InternVL3.5: tiles, then the whole image as one more if there are several."""

    image = placeholder = "<IMG_CONTEXT>"
    marks = r"<IMG_CONTEXT>|</?img>|<video>"
    reader = ("got_ocr2.image_processing_pil_got_ocr2", "GotOcr2ImageProcessorPil")

    @property
    def processor_config(self) -> dict[str, Any]:  # noqa: D102
        return {"processor_class": "InternVLProcessor", "image_seq_length": self._length}

    @property
    def _length(self) -> int:
        """Image tokens of a tile."""
        return int((self._tile_side * self.config.downsample_ratio) ** 2)

    def read(self, reader: Any, image: Image.Image) -> Reading:  # noqa: D102
        pixels = reader(images=[image], return_tensors="np", crop_to_patches=True)["pixel_values"]
        return self._tiles(pixels, f"<img>{self.image * (self._length * len(pixels))}</img>")


class LlavaOnevision(Family):
    """LLaVA-OneVision: one tile an image and the feature of a new line.

    That is how it was trained on several images. It reads a lone image in up to ten tiles, which
    would change the tokens of a conversation's first image when the second appears.
    """

    image = placeholder = "<image>"
    marks = r"<image>|<video>"
    reader = (
        "llava_onevision.image_processing_pil_llava_onevision",
        "LlavaOnevisionImageProcessorPil",
    )

    @property
    def processor_config(self) -> dict[str, Any]:  # noqa: D102
        return {
            "processor_class": "LlavaOnevisionProcessor",
            "num_image_tokens": self._tile_side**2,
            "vision_feature_select_strategy": self.config.vision_feature_select_strategy,
            "vision_aspect_ratio": self.config.vision_aspect_ratio,
        }

    def read(self, reader: Any, image: Image.Image) -> Reading:  # noqa: D102
        several = [[image, Image.new("RGB", (1, 1))]]
        pixels = reader(images=several, return_tensors="np")["pixel_values"][0]
        without_first = self.config.vision_feature_select_strategy == "default"
        return self._tiles(pixels, self.image * (self._tile_side**2 + 1 - without_first))

    def inputs(self, pixels: "Tensor", grids: Sequence[Grid]) -> "dict[str, Tensor]":  # noqa: D102
        import torch

        return {
            "pixel_values": pixels,
            "image_sizes": torch.ones(len(grids), 2, dtype=torch.long, device=pixels.device),
            "batch_num_images": torch.tensor([len(grids) + 1]),  # never a lone image
        }


class Gemma3(Family):
    """Gemma 3: one tile an image, whose tokens see each other in both directions."""

    image, placeholder = "<image_soft_token>", "<start_of_image>"
    marks = r"<image_soft_token>|<(start|end)_of_image>"
    reader = ("gemma3.image_processing_pil_gemma3", "Gemma3ImageProcessorPil")
    bidirectional = True

    @property
    def processor_config(self) -> dict[str, Any]:  # noqa: D102
        length = self.config.mm_tokens_per_image
        return {"processor_class": "Gemma3Processor", "image_seq_length": length}

    def read(self, reader: Any, image: Image.Image) -> Reading:  # noqa: D102
        pixels = reader(images=[image], return_tensors="np", do_pan_and_scan=False)["pixel_values"]
        soft = self.image * self.config.mm_tokens_per_image
        return self._tiles(pixels, f"\n\n<start_of_image>{soft}<end_of_image>\n\n")


FAMILIES: dict[str, type[Family]] = {
    "qwen2_vl": QwenVL,
    "qwen2_5_vl": QwenVL,
    "qwen3_vl": QwenVL,
    "gemma3": Gemma3,
    "glm4v": Glm4v,
    "glm46v": Glm46V,
    "internvl": InternVL,
    "llava_onevision": LlavaOnevision,
    "smolvlm": SmolVLM,
    "idefics3": Idefics3,
}
"""By `model_type` of the configuration."""


def family_of(config: Any, path: str | Path = "") -> Family:
    """The family of a model's configuration.

    Args:
        config: Configuration of `transformers`.
        path: Source of the model, for error messages.

    Raises:
        ModelError: The model reads images in a way that is not supported.
    """
    if getattr(config, "vision_config", None) is None:
        return Family(config)
    if config.model_type not in FAMILIES:
        raise ModelError(
            f"{path}: no support for images as {config.model_type} reads them; use a model of "
            f"{', '.join(FAMILIES)}, or a text-only one"
        )
    return FAMILIES[config.model_type](config)


def tower_parts(backbone: Any) -> list[Any]:
    """The vision tower of a backbone and what projects its features; empty without vision."""
    return [getattr(backbone, name) for name in TOWER_PARTS if hasattr(backbone, name)]
