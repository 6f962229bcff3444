"""G2: log-probabilities and values on the GPU in bfloat16 against float32 on the CPU.

Differences of two computations of the same rows: types, padded against packed rows, another order
of the rows and so other micro batches.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu.common import Setup, difference, rows_of, written_episodes
from benchmarks.gpu.engines import local_engine, one_rank

EXACT = 5e-3
"""Largest difference in float32, beside the deviation of what is compared where that is above 1."""
ROUNDED = 0.1
"""Largest mean difference where one of the two is bfloat16, likewise."""
LEAST_CORRELATION = 0.995
HEAD_SEED = 5


def check(setup: Setup) -> dict[str, Any]:
    """Passes if every computation is the reference's up to the rounding of its type."""
    config = setup.experiment()
    trajectories, images = written_episodes(setup, config)
    rows = rows_of(trajectories)
    with local_engine(config, setup.infra("engine=local", "device=cpu", "dtype=float32")) as engine:
        _draw_head(engine.critic.head.weight)
        reference = engine.logprobs(rows, images), engine.values(rows, images)[0]
    found: dict[str, Any] = {}
    for dtype in dict.fromkeys(("float32", setup.dtype)):
        with local_engine(config, setup.infra("engine=local", f"dtype={dtype}")) as engine:
            _draw_head(engine.critic.head.weight)
            found[f"local/{dtype}"] = _said(engine, rows, images)
    for attention in ("packed", "sdpa"):
        with one_rank(config, setup.infra(f"verl.attention={attention}")) as engine:
            _draw_head(engine.groups.critic.worker.engine.module.get_output_embeddings().weight)
            name = f"verl/{setup.dtype}/{attention}"
            found[name] = _said(engine, rows, images)
            found[f"{name}/shuffled"] = _said(engine, rows, images, shuffled=True)
    compared = {
        name: _compare(said, reference, rows, exact="float32" in name)
        for name, said in found.items()
    }
    packed, padded = (f"verl/{setup.dtype}/{x}" for x in ("packed", "sdpa"))
    for name, pair in {
        "packed against sdpa": (found[packed], found[padded]),
        "shuffled against in order": (found[f"{packed}/shuffled"], found[packed]),
    }.items():
        compared[name] = _compare(*pair, rows, exact=setup.dtype == "float32")
    return {
        "passed": all(figures["passed"] for figures in compared.values()),
        "thresholds": {
            "float32, largest difference": EXACT,
            "bfloat16, mean difference": ROUNDED,
            "correlation": LEAST_CORRELATION,
        },
        "tokens": sum(len(row.input_ids) for row in rows),
        "sampled": sum(int(row.loss_mask.sum()) for row in rows),
        "compared": compared,
    }


def _draw_head(weight: Any) -> None:
    """A value head that says something, the same in every engine; as it starts it says 0."""
    import torch

    local = weight.to_local() if hasattr(weight, "to_local") else weight
    drawn = torch.randn(local.shape, generator=torch.Generator().manual_seed(HEAD_SEED))
    with torch.no_grad():
        local.copy_(drawn * local.shape[1] ** -0.5)


def _said(engine: Any, rows: Sequence[Any], images: Any, *, shuffled: bool = False) -> Any:
    """Log-probabilities and values of the rows, asked for in this order or in another."""
    order = list(range(len(rows)))
    if shuffled:
        order = np.random.default_rng(0).permutation(len(rows)).tolist()
    asked = [rows[i] for i in order]
    said = engine.logprobs(asked, images), engine.values(asked, images)[0]
    places = np.argsort(order)
    return tuple([one[i] for i in places] for one in said)


def _compare(found: Any, reference: Any, rows: Sequence[Any], *, exact: bool) -> dict[str, Any]:
    apart = partial(difference, rows=rows)
    logprobs, values = (apart(a, b) for a, b in zip(found, reference, strict=True))
    kind, limit = ("max", EXACT) if exact else ("mean", ROUNDED)
    passed = all(
        x[kind] <= limit * max(1.0, x["deviation"]) and x["correlation"] >= LEAST_CORRELATION
        for x in (logprobs, values)
    )
    return {"logprobs": logprobs, "values": values, "passed": passed}
