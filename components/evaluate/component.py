"""The `evaluate` step."""

from kfp import dsl
from kfp.dsl import HTML, Metrics, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def evaluate(
    run: str,
    name: str,
    split: str,
    report: Output[HTML],
    metrics: Output[Metrics],
):
    """Plays the held-out levels with a policy and writes a report of every episode.

    The final evaluation also deletes the run's Ray cluster, which later steps do not need.

    Args:
        run: The run: its folder, or its URI in a store.
        name: Name of the evaluation: `warm_start`, `final`, `iteration-0010`.
        split: Levels to play: `val` or `test`.
        report: The report, one HTML file.
        metrics: Metrics of the step.
    """
    from vagen.launch.lifecycle import release
    from vagen.launch.step import finite, run_stage, save_report

    result = run_stage(run, "evaluate", name=name, split=split)
    save_report(run, name, report.path)
    report.metadata["sha256"] = result["sha256"]
    metrics.metadata.update(finite(result["metrics"]))
    release(run, after=name)
