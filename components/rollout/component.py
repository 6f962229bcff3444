"""The `rollout` step."""

from kfp import dsl
from kfp.dsl import Dataset, Metrics, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def rollout(
    run: str,
    iteration: int,
    trajectories: Output[Dataset],
    metrics: Output[Metrics],
):
    """Plays one batch of episodes with the current policy.

    Args:
        run: The run: its folder, or its URI in a store.
        iteration: Index of the iteration, from 0.
        trajectories: The trajectory batch.
        metrics: Metrics of the step.
    """
    from vagen.launch.step import hand_on, run_stage

    hand_on(run_stage(run, "rollout", iteration=iteration), trajectories, metrics)
