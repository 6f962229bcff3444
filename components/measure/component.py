"""The `measure` step."""

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
):
    """Plays held-out levels with a run's newest policy, even during training.

    Args:
        run: The run: its folder, or its URI in a store.
        name: Name of the evaluation; an existing one is not repeated.
        split: Levels to play: `val` or `test`.
        count: Levels per environment; 0 for all.
        report: The report, one HTML file.
        metrics: Metrics of the step.
    """
    from vagen.launch.step import finite, run_stage, save_report

    result = run_stage(run, "measure", name=name, split=split, count=count)
    save_report(run, name, report.path)
    report.metadata["sha256"] = result["sha256"]
    metrics.metadata.update(finite(result["metrics"]))
