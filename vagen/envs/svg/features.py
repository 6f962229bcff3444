"""Scores by pretrained vision transformers from a local directory.

- `DinoScorer`: cosine of DINOv2's pooled features; the directory is a Transformers model directory
(`config.json`, `model.safetensors`), such as a copy of `facebook/dinov2-base`.
- `DreamSimScorer`: 1 - DreamSim's distance (Fu et al. 2023) for its single-backbone models. The
backbone is a Transformers model directory with a subfolder of DreamSim's released adapter
(`dinov2_vitb14_single_lora/` or `dino_vitb16_single_lora/`, each with `adapter_config.json` and
`adapter_model.safetensors` or `.bin`). The adapter's low-rank update of the fused `qkv` projection
is added to the three separate projections of Transformers.
"""

import functools
import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vagen.envs.svg.score import Picture

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's channels, used in training of both backbones."""
PROJECTIONS = (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"))
"""Names of the three projections of a block, in the order of `qkv`."""
ADAPTERS = ("dinov2_vitb14_single_lora", "dino_vitb16_single_lora")
"""Folders of DreamSim's releases for DINOv2 and for the first DINO."""


class ScorerError(ValueError):
    """A scorer's files are missing or invalid."""


class FeatureScorer(ABC):
    """Scores the similarity of two images by their features."""

    _model: Any

    def __init__(self) -> None:
        self._embed = functools.lru_cache(maxsize=256)(self._features)

    def score(self, target: Picture, picture: Picture) -> float:
        """Cosine of the two images' features, at least 0; 1 for equal images."""
        one, other = (self._embed(p.tobytes(), p.shape[0]) for p in (target, picture))
        return max(float(one @ other), 0.0)

    @abstractmethod
    def _features(self, data: bytes, side: int) -> NDArray[np.float32]:
        """A unit vector for the pixels of an image."""


class DinoScorer(FeatureScorer):
    """Cosine of DINOv2's pooled features."""

    def __init__(self, folder: Path) -> None:
        """Loads the model.

        Raises:
            ScorerError: `folder` is not a model directory.
        """
        super().__init__()
        self._model = _load_backbone(folder, "DINOv2", ("dinov2", "dinov2_with_registers"))

    def _features(self, data: bytes, side: int) -> NDArray[np.float32]:
        import torch

        with torch.inference_mode():
            output = self._model(pixel_values=_pixels(data, side, self._model.config.image_size))
        return _unit(output.pooler_output[0].numpy())


class DreamSimScorer(FeatureScorer):
    """1 - DreamSim's distance."""

    def __init__(self, folder: Path) -> None:
        """Loads the backbone and adds DreamSim's adapter to it.

        Raises:
            ScorerError: The backbone or the adapter is missing, or they do not match.
        """
        super().__init__()
        self._model = _load_backbone(folder, "DreamSim's backbone", ("dinov2", "vit"))
        name = ADAPTERS[0] if self._model.config.model_type == "dinov2" else ADAPTERS[1]
        adapter = folder / name
        if not adapter.is_dir():
            raise ScorerError(
                f"no DreamSim adapter in {folder}: put the release's folder {name} there"
            )
        _merge_adapter(self._model, adapter)

    def _features(self, data: bytes, side: int) -> NDArray[np.float32]:
        """The class token after the last block, centred and normalised."""
        import torch

        resizes = self._model.config.model_type == "vit"  # DINOv2 does this by default
        options = {"interpolate_pos_encoding": True} if resizes else {}
        # DreamSim uses the output of the last block before the final layer norm.
        with torch.inference_mode():
            output = self._model(
                pixel_values=_pixels(data, side, 224), output_hidden_states=True, **options
            )
        token = output.hidden_states[-1][0, 0].numpy()
        return _unit(token - token.mean())


@functools.cache
def load_scorer(kind: str, folder: str) -> FeatureScorer:
    """The scorer of a directory, loaded once per process.

    Args:
        kind: `dino` or `dreamsim`.
        folder: The model directory.

    Raises:
        ScorerError: The directory is missing or invalid.
    """
    return {"dino": DinoScorer, "dreamsim": DreamSimScorer}[kind](Path(folder))


def _load_backbone(folder: Path, what: str, model_types: tuple[str, ...]) -> Any:
    if not (folder / "config.json").is_file():
        raise ScorerError(
            f"{what} is not in {folder}: copy a Transformers model directory there (config.json "
            "and model.safetensors), and name it in env_config.dino_path or dreamsim_path"
        )
    from transformers import AutoModel

    found = json.loads((folder / "config.json").read_text()).get("model_type")
    if found not in model_types:
        raise ScorerError(
            f"{folder} holds a model of type {found!r}; {what} is of type "
            f"{' or '.join(model_types)}"
        )
    try:
        model = AutoModel.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ScorerError(f"{what} cannot be loaded from {folder}: {error}") from error
    return model.eval().requires_grad_(False)


def _pixels(data: bytes, side: int, model_side: int) -> Any:
    """An image for the backbone, float32 [1, 3, model_side, model_side]."""
    import torch

    image = Image.frombytes("RGB", (side, side), data)
    image = image.resize((model_side, model_side), Image.Resampling.BICUBIC)
    values = np.asarray(image, np.float32) / 255.0
    values = (values - np.asarray(MEAN, np.float32)) / np.asarray(STD, np.float32)
    return torch.from_numpy(values.transpose(2, 0, 1).copy())[None]


def _merge_adapter(model: Any, folder: Path) -> None:
    """Adds alpha / r * B @ A of each block's fused query, key and value projection."""
    import torch

    try:
        options = json.loads((folder / "adapter_config.json").read_text())
        scale = options["lora_alpha"] / options["r"]
        weights = _adapter_weights(folder)
    except (OSError, KeyError, ValueError) as error:
        raise ScorerError(f"no DreamSim adapter can be read from {folder}: {error}") from error
    blocks = list(zip(*(_projections(model, names) for names in PROJECTIONS), strict=True))
    for index, parts in enumerate(blocks):
        key = f".blocks.{index}.attn.qkv.lora_"
        found = {name.split(key)[1][0]: value for name, value in weights.items() if key in name}
        if set(found) != {"A", "B"}:
            raise ScorerError(f"{folder} has no update of block {index} of {len(blocks)}")
        update = (scale * (found["B"].float() @ found["A"].float())).chunk(3)
        for part, change in zip(parts, update, strict=True):
            if part.weight.shape != change.shape:
                raise ScorerError(
                    f"the adapter in {folder} is for weights of shape {tuple(change.shape)}, the "
                    f"backbone has {tuple(part.weight.shape)}"
                )
            with torch.no_grad():
                part.weight += change


def _projections(model: Any, names: tuple[str, ...]) -> list[Any]:
    """Layers with one of these names, block by block; Transformers has renamed them."""
    return [module for name, module in model.named_modules() if name.rpartition(".")[2] in names]


def _adapter_weights(folder: Path) -> dict[str, Any]:
    if (folder / "adapter_model.safetensors").is_file():
        from safetensors.torch import load_file

        return load_file(folder / "adapter_model.safetensors")
    import torch

    return torch.load(folder / "adapter_model.bin", map_location="cpu", weights_only=True)


def _unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    return vector / max(float(np.linalg.norm(vector)), 1e-12)
