"""The `train` step."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Metrics, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train(
    run: str,
    start: int,
    stop: int,
    policy: Output[Model],
    metrics: Output[Metrics],
) -> NamedTuple("Produced", [("uri", str), ("sha256", str)]):
    """Runs whole iterations in one task: rollout, judge, advantage, update, again and again.

    Args:
        run: The run: its folder, or its URI in a store.
        start: First iteration.
        stop: Iteration to stop before.
        policy: The policy after the last iteration.
        metrics: Metrics of the step.

    Returns:
        Folder and SHA-256 of what was written.
    """
    from vagen.stages.session import finite, iterate

    result = iterate(run, start, stop)
    policy.uri = result["uri"]
    policy.metadata["sha256"] = result["sha256"]
    metrics.metadata.update(finite(result["metrics"]))
    return result["uri"], result["sha256"]
