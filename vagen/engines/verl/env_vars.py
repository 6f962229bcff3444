"""Environment variables of the distributed engine; imports neither verl nor Ray."""

import importlib.util
import os
from pathlib import Path

PLATFORM = "cpu"
"""`vagen.engines.verl.cpu.CpuPlatform`."""
VENDOR = "vagen"
"""Vendor name under which our engine classes are registered with verl."""

SETUP_HOOK = f"{__name__}.begin"
"""The function that Ray's processes call first (`runtime_env`)."""

_SITE = str(Path(__file__).with_name("site"))
"""Folder of `sitecustomize.py`, for a torchvision without its compiled part."""


def is_installed() -> bool:
    """Whether verl is installed; a folder of that name, as next to its clone, does not count."""
    found = importlib.util.find_spec("verl")
    return found is not None and found.origin is not None


def variables_of(*, cpu: bool) -> dict[str, str]:
    """Variables that every process needs before it imports verl; also for Ray's `runtime_env`.

    Args:
        cpu: Whether the workers compute on CPUs.
    """
    variables = {
        "VERL_USE_EXTERNAL_MODULES": "vagen.engines.verl.cpu",
        "VERL_ENGINE_VENDOR": VENDOR,
        "VERL_LOGGING_LEVEL": os.environ.get("VERL_LOGGING_LEVEL", "WARNING"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        # Otherwise every process warns of each kind of engine that is not installed.
        "PYTHONWARNINGS": "ignore::UserWarning:verl.workers.engine",
    }
    if cpu:
        variables |= {
            "VERL_PLATFORM": PLATFORM,
            # Engine classes are registered for cuda and npu only; the FSDP ones run on any device.
            "VERL_ENGINE_DEVICE": "cuda",
            "TORCHDYNAMO_DISABLE": "1",
            # Otherwise every process warns of this variable's coming default.
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            # GiB of vLLM's key/value cache; its default is half of the machine's memory.
            "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
        }
        if importlib.util.find_spec("torchvision") is not None:
            variables["PYTHONPATH"] = os.pathsep.join([_SITE, os.environ.get("PYTHONPATH", "")])
    return variables


def begin() -> None:
    """Makes Ray's processes import only the needed part of `transformers`."""
    import vagen.models.lean_transformers  # noqa: F401


def configure(*, cpu: bool) -> dict[str, str]:
    """Prepares this process and returns the variables; loads neither verl nor models."""
    begin()
    variables = variables_of(cpu=cpu)
    if "PYTHONPATH" in variables:
        import vagen.engines.verl.site.sitecustomize  # noqa: F401
    os.environ.update(variables)
    return variables
