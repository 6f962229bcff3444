"""The `judge` step."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Dataset, Metrics, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def judge(
    run: str,
    iteration: int,
    source_uri: str,
    source_sha256: str,
    trajectories: Output[Dataset],
    metrics: Output[Metrics],
) -> NamedTuple("Produced", [("uri", str), ("sha256", str)]):
    """Scores what the agent said it sees and predicts against the ground truth.

    Args:
        run: The run: its folder, or its URI in a store.
        iteration: Number of the iteration, from 0.
        source_uri: Folder of the rollout batch; empty skips the check.
        source_sha256: Its SHA-256; the step refuses anything else.
        trajectories: The trajectory batch with verdicts and judge rewards.
        metrics: Metrics of the step.

    Returns:
        Folder and SHA-256 of what was written.
    """
    from vagen.stages.session import call, finite

    result = call(
        run, "judge", iteration=iteration, source_uri=source_uri, source_sha256=source_sha256
    )
    trajectories.uri = result["uri"]
    trajectories.metadata["sha256"] = result["sha256"]
    metrics.metadata.update(finite(result["metrics"]))
    return result["uri"], result["sha256"]
