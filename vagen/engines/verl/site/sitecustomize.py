"""On PYTHONPATH of every process that computes on a CPU where torchvision is installed.

vLLM starts processes of its own that import torchvision before any of our code runs there.
"""

import importlib.abc
import sys
from typing import Any


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Finds nothing: declares torchvision's operators when somebody asks for it first."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """See `importlib.abc.MetaPathFinder`."""
        if name == "torchvision":
            sys.meta_path.remove(self)
            from vagen.engines.verl.operators import declare_torchvision_operators

            declare_torchvision_operators()


sys.meta_path.insert(0, _BeforeTorchvision())
