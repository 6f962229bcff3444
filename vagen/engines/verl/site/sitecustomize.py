"""Makes a torchvision built for CUDA importable with a torch for the CPU.

There is no torchvision for the CPU, but vLLM needs one, and transformers imports any that is
installed. Importing this module suffices. It is on the `PYTHONPATH` of processes that compute on a
CPU, since vLLM starts some that import torchvision before any of our code runs.
"""

import importlib.abc
import sys
from typing import Any


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Declares the operators of torchvision's compiled part before its import; finds no module."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """See `importlib.abc.MetaPathFinder`."""
        if name != "torchvision":
            return
        sys.meta_path.remove(self)
        import torch

        if torch.version.cuda is None and not hasattr(torch.ops.torchvision, "nms"):
            self.library = torch.library.Library("torchvision", "FRAGMENT")
            for operator in ("nms", "qnms"):
                arguments = "Tensor dets, Tensor scores, float iou_threshold"
                self.library.define(f"{operator}({arguments}) -> Tensor")


FINDER = _BeforeTorchvision()
"""Keeps the declarations alive."""
sys.meta_path.insert(0, FINDER)
