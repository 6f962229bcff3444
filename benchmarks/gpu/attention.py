"""G1: which of torch's kernels read packed rows, and what `packed` costs beside `sdpa`."""

from typing import Any

from benchmarks.gpu.common import Meter, Setup, add_columns, difference, rows_of, written_episodes
from benchmarks.gpu.engines import one_rank

BACKENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
ATTENTIONS = ("packed", "sdpa")


def check(setup: Setup) -> dict[str, Any]:
    """Passes if a fused kernel is what torch picks, and packed rows cost no more than padded."""
    config = setup.experiment()
    trajectories, images = written_episodes(setup, config)
    rows = rows_of(trajectories)
    meter = Meter(setup.device)
    logprobs = {}
    for attention in ATTENTIONS:
        with one_rank(config, setup.infra(f"verl.attention={attention}")) as engine:

            def infer(engine: Any = engine) -> Any:
                return engine.logprobs(rows, images)

            def update(engine: Any = engine) -> Any:
                return engine.update(rows, images, seed=0)

            found = meter.repeat(f"{attention}/logprobs", setup.repeats, infer)
            logprobs[attention] = found
            values = engine.values(rows, images)[0] if engine.learns_values else None
            add_columns(rows, found, values)
            meter.repeat(f"{attention}/update", setup.repeats, update)
    lengths = [len(row.input_ids) for row in rows]
    kernels = _kernels(setup, config, sorted(lengths)[-4:])
    phases = meter.report()
    gain = {
        part: meter.median(f"sdpa/{part}") / meter.median(f"packed/{part}")
        for part in ("logprobs", "update")
    }
    fused = kernels["picked"] != "MATH" or setup.device == "cpu"
    return {
        "passed": fused and min(gain.values()) >= 0.95,
        "rows": len(rows),
        "tokens": sum(lengths),
        "kernels": kernels,
        "phases": phases,
        "gain_of_packed": gain,
        "difference": difference(logprobs["packed"], logprobs["sdpa"], rows),
    }


def _kernels(setup: Setup, config: Any, lengths: list[int]) -> dict[str, Any]:
    """Milliseconds of each kernel on a group of packed rows, forward and backward; None: refused.

    Shapes are those of `vagen.models.attention`: rows of similar length padded to the longest,
    causal, fewer key heads than query heads.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    from vagen.plan.shape import read_shape

    shape = read_shape(config.actor_rollout_ref.model.path)
    torch.manual_seed(0)
    options: dict[str, Any] = {"device": setup.device, "dtype": getattr(torch, setup.dtype)}
    query, key, value = (
        torch.randn(len(lengths), heads, max(lengths), shape.head_dim, **options).requires_grad_()
        for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
    )
    causal: dict[str, Any] = {"is_causal": True, "enable_gqa": shape.heads != shape.kv_heads}
    picked = SDPBackend(torch._fused_sdp_choice(query, key, value, None, 0.0, **causal))

    def compute() -> None:
        scaled_dot_product_attention(query, key, value, **causal).sum().backward()

    served: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for name in BACKENDS:
        meter = Meter(setup.device)
        try:
            with sdpa_kernel(getattr(SDPBackend, name)):
                meter.repeat(name, 5, compute)
            served[name] = round(1000 * meter.median(name), 3)
        except RuntimeError as error:
            served[name], reasons[name] = None, str(error).splitlines()[0]
    return {
        "shape": [list(x.shape) for x in (query, key)],
        "picked": picked.name,
        "milliseconds": served,
        "refused": reasons,
    }
