"""Makes a torchvision built for CUDA importable with a torch for the CPU."""

import importlib.util
import sys

import torch

_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
"""Keeps the declarations alive."""


def declare_torchvision_operators() -> None:
    """Declares the operators of torchvision's compiled part.

    There is no torchvision for the CPU, but vLLM needs one and transformers imports any that is
    installed, so this must run first. Does nothing where torch has CUDA.
    """
    if torch.version.cuda is not None or importlib.util.find_spec("torchvision") is None:
        return
    if "torchvision" in sys.modules or hasattr(torch.ops.torchvision, "nms"):
        return
    for name in ("nms", "qnms"):
        _LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
