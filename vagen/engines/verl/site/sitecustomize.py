"""For `PYTHONPATH` of processes that compute on a CPU where torchvision is installed.

vLLM starts processes that import torchvision before any of our code runs.
"""

import importlib.abc
import sys
from typing import Any


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Declares torchvision's operators when torchvision is first imported; finds no module."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """See `importlib.abc.MetaPathFinder`."""
        if name == "torchvision":
            sys.meta_path.remove(self)
            from vagen.engines.verl.operators import declare_torchvision_operators

            declare_torchvision_operators()


sys.meta_path.insert(0, _BeforeTorchvision())
