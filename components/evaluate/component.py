"""The `evaluate` step."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Metrics, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def evaluate(
    run: str,
    name: str,
    split: str,
    source_uri: str,
    source_sha256: str,
    report: Output[HTML],
    metrics: Output[Metrics],
) -> NamedTuple("Produced", [("uri", str), ("sha256", str)]):
    """Plays the held-out levels with a policy and writes a report of every episode.

    Args:
        run: The run: its folder, or its URI in a store.
        name: Name of the evaluation: `warm_start`, `final`, `iteration-0010`.
        split: Levels to play: `val` or `test`.
        source_uri: Folder of the policy; empty skips the check.
        source_sha256: Its SHA-256; the step refuses anything else.
        report: The report, one HTML file.
        metrics: Metrics of the step.

    Returns:
        Folder and SHA-256 of what was written.
    """
    from vagen.stages.session import call, finite

    result = call(
        run,
        "evaluate",
        name=name,
        split=split,
        source_uri=source_uri,
        source_sha256=source_sha256,
    )
    report.uri = f"{result['uri']}/report.html"
    report.metadata["sha256"] = result["sha256"]
    metrics.metadata.update(finite(result["metrics"]))
    return result["uri"], result["sha256"]
