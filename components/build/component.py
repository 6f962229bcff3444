"""The `build` step."""

from kfp import dsl
from kfp.dsl import Dataset, Metrics, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def build(
    run: str,
    levels: Output[Dataset],
    metrics: Output[Metrics],
):
    """Builds the levels: train, validation and test sets, disjoint by level hash.

    Args:
        run: The run: its folder, or its URI in a store.
        levels: The levels.
        metrics: Metrics of the step.
    """
    from vagen.launch.step import hand_on, run_stage

    hand_on(run_stage(run, "build"), levels, metrics)
