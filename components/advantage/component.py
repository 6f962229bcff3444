"""The `advantage` step."""

from kfp import dsl
from kfp.dsl import Dataset, Metrics, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def advantage(
    run: str,
    iteration: int,
    trajectories: Output[Dataset],
    metrics: Output[Metrics],
):
    """Computes log-probabilities, values, advantages and returns of a judged batch.

    Args:
        run: The run: its folder, or its URI in a store.
        iteration: Index of the iteration, from 0.
        trajectories: The trajectory batch with all columns for the update.
        metrics: Metrics of the step.
    """
    from vagen.launch.step import hand_on, run_stage

    hand_on(run_stage(run, "advantage", iteration=iteration), trajectories, metrics)
