"""The `register` step."""

from kfp import dsl
from kfp.dsl import Metrics, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def register(
    run: str,
    model: Output[Model],
    metrics: Output[Metrics],
):
    """Registers the trained model; moves the alias only if it is better than the current holder.

    Args:
        run: The run: its folder, or its URI in a store.
        model: The registered model version.
        metrics: Metrics of the step.
    """
    from vagen.launch.step import hand_on, run_stage

    hand_on(run_stage(run, "register"), model, metrics)
