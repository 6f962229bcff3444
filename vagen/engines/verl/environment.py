"""Environment variables of the distributed engine; imports neither verl nor Ray."""

import os

PLATFORM = "cpu"
"""`vagen.engines.verl.platform.CpuPlatform`."""
VENDOR = "vagen"
"""Under which our engine classes are registered with verl."""


def environment(*, cpu: bool) -> dict[str, str]:
    """What every process needs before it imports verl; also for Ray's `runtime_env`.

    Args:
        cpu: Whether the workers compute on CPUs.
    """
    variables = {
        "VERL_USE_EXTERNAL_MODULES": "vagen.engines.verl.plugin",
        "VERL_ENGINE_VENDOR": VENDOR,
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if cpu:
        variables |= {
            "VERL_PLATFORM": PLATFORM,
            # Engine classes are registered for cuda and npu only; the FSDP ones run on any device.
            "VERL_ENGINE_DEVICE": "cuda",
            "TORCHDYNAMO_DISABLE": "1",
            # Ray warns of this variable's coming default in every process.
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }
    return variables


def configure(*, cpu: bool) -> dict[str, str]:
    """Sets the variables in this process and returns them; verl must not be imported yet."""
    variables = environment(cpu=cpu)
    os.environ.update(variables)
    return variables
