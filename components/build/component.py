"""The `build` step."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Dataset, Metrics, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def build(
    run: str,
    levels: Output[Dataset],
    metrics: Output[Metrics],
) -> NamedTuple("Produced", [("uri", str), ("sha256", str)]):
    """Builds the levels: train, validation and test sets, disjoint by level hash.

    Args:
        run: The run: its folder, or its URI in a store.
        levels: The levels.
        metrics: Metrics of the step.

    Returns:
        Folder and SHA-256 of what was written.
    """
    from vagen.stages.session import call, finite

    result = call(run, "build")
    levels.uri = result["uri"]
    levels.metadata["sha256"] = result["sha256"]
    metrics.metadata.update(finite(result["metrics"]))
    return result["uri"], result["sha256"]
