"""The `update` step."""

from kfp import dsl
from kfp.dsl import Metrics, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def update(
    run: str,
    iteration: int,
    policy: Output[Model],
    metrics: Output[Metrics],
):
    """Updates the actor and the critic with PPO, and plays the validation levels if due.

    Args:
        run: The run: its folder, or its URI in a store.
        iteration: Index of the iteration, from 0.
        policy: The updated policy, with critic and optimizer state.
        metrics: Metrics of the step.
    """
    from vagen.launch.step import hand_on, run_stage, validate

    hand_on(run_stage(run, "update", iteration=iteration), policy, metrics)
    validate(run, iteration)
