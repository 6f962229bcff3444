"""Lets a torchvision that was built for CUDA be imported beside a torch for the CPU."""

import importlib.util
import sys

import torch

_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
"""Declarations live as long as this object."""


def declare_torchvision_operators() -> None:
    """Declares what torchvision expects its compiled part to have declared.

    There is no torchvision for the CPU. vLLM needs one, and transformers imports it wherever it is
    installed, so this comes before both. Where torch has CUDA it does nothing.
    """
    if torch.version.cuda is not None or importlib.util.find_spec("torchvision") is None:
        return
    if "torchvision" in sys.modules or hasattr(torch.ops.torchvision, "nms"):
        return
    for name in ("nms", "qnms"):
        _LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
