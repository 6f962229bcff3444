"""The `warm_start` step."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Metrics, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def warm_start(
    run: str,
    source_uri: str,
    source_sha256: str,
    policy: Output[Model],
    metrics: Output[Metrics],
) -> NamedTuple("Produced", [("uri", str), ("sha256", str)]):
    """Prepares the first policy: the model, after supervised learning on expert episodes.

    Args:
        run: The run: its folder, or its URI in a store.
        source_uri: Folder of the levels; empty skips the check.
        source_sha256: Its SHA-256; the step refuses anything else.
        policy: The policy before reinforcement learning.
        metrics: Metrics of the step.

    Returns:
        Folder and SHA-256 of what was written.
    """
    from vagen.stages.session import call, finite

    result = call(run, "warm_start", source_uri=source_uri, source_sha256=source_sha256)
    policy.uri = result["uri"]
    policy.metadata["sha256"] = result["sha256"]
    metrics.metadata.update(finite(result["metrics"]))
    return result["uri"], result["sha256"]
