"""The `measure` step."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Metrics, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def measure(
    run: str,
    name: str,
    split: str,
    count: int,
    report: Output[HTML],
    metrics: Output[Metrics],
) -> NamedTuple("Produced", [("uri", str), ("sha256", str)]):
    """Plays held-out levels with a run's newest policy, whatever the run is doing.

    Args:
        run: The run: its folder, or its URI in a store.
        name: Name of the evaluation; one that is there already is not made again.
        split: Levels to play: `val` or `test`.
        count: Levels per environment; 0 takes all.
        report: The report, one HTML file.
        metrics: Metrics of the step.

    Returns:
        Folder and SHA-256 of what was written.
    """
    from vagen.stages.session import call, finite

    result = call(run, "measure", name=name, split=split, count=count)
    report.uri = f"{result['uri']}/report.html"
    report.metadata["sha256"] = result["sha256"]
    metrics.metadata.update(finite(result["metrics"]))
    return result["uri"], result["sha256"]
