"""The `deploy` step."""

from kfp import dsl
from kfp.dsl import HTML, Metrics, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def deploy(
    run: str,
    name: str,
    report: Output[HTML],
    metrics: Output[Metrics],
):
    """Serves the registered agent, if it plays the held-out levels there as well as before.

    Args:
        run: The run: its URI in a store.
        name: Name of the evaluation of the deployed agent.
        report: The report, one HTML file; its metadata say whether it was deployed, and why.
        metrics: Metrics of the step: `deployed`, 0 after a rollback, and `success`.
    """
    from vagen.launch.step import deploy_agent, save_report

    result = deploy_agent(run, name)
    save_report(run, name, report.path)
    report.metadata["result"] = result["text"]
    metrics.metadata.update(result["metrics"])
