"""The `evaluate_model` step."""

from kfp import dsl
from kfp.dsl import HTML, Metrics, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def evaluate_model(
    evaluation: str,
    infra: str,
    folder: str,
    model: str,
    report: Output[HTML],
    metrics: Output[Metrics],
):
    """Plays a hosted model in every environment of an evaluation, or creates the table of all.

    Args:
        evaluation: Text of the evaluation's file.
        infra: Text of the infra file.
        folder: URI of the evaluation in a store; an existing one continues.
        model: Name of the model's row; empty creates the table.
        report: The leaderboard, one HTML file.
        metrics: Success of each row.
    """
    from vagen.launch.step import evaluate_model

    metrics.metadata.update(evaluate_model(evaluation, infra, folder, model, report.path))
