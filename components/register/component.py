"""The `register` step."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Metrics, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def register(
    run: str,
    source_uri: str,
    source_sha256: str,
    model: Output[Model],
    metrics: Output[Metrics],
) -> NamedTuple("Produced", [("uri", str), ("sha256", str)]):
    """Registers the trained model; its alias moves only if it is better than the present holder.

    Args:
        run: The run: its folder, or its URI in a store.
        source_uri: Folder of the policy; empty skips the check.
        source_sha256: Its SHA-256; the step refuses anything else.
        model: The registered model version.
        metrics: Metrics of the step.

    Returns:
        Folder and SHA-256 of what was written.
    """
    from vagen.stages.session import call, finite

    result = call(run, "register", source_uri=source_uri, source_sha256=source_sha256)
    model.uri = result["uri"]
    model.metadata["sha256"] = result["sha256"]
    metrics.metadata.update(finite(result["metrics"]))
    return result["uri"], result["sha256"]
