"""The `judge` step."""

from kfp import dsl
from kfp.dsl import Dataset, Metrics, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def judge(
    run: str,
    iteration: int,
    trajectories: Output[Dataset],
    metrics: Output[Metrics],
):
    """Scores the agent's descriptions and predictions against the true state.

    Args:
        run: The run: its folder, or its URI in a store.
        iteration: Index of the iteration, from 0.
        trajectories: The trajectory batch with verdicts and judge rewards.
        metrics: Metrics of the step.
    """
    from vagen.launch.step import hand_on, run_stage

    hand_on(run_stage(run, "judge", iteration=iteration), trajectories, metrics)
