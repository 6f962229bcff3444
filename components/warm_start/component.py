"""The `warm_start` step."""

from kfp import dsl
from kfp.dsl import Metrics, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def warm_start(
    run: str,
    policy: Output[Model],
    metrics: Output[Metrics],
):
    """Prepares the initial policy: the model after supervised learning on expert episodes.

    Args:
        run: The run: its folder, or its URI in a store.
        policy: The policy before reinforcement learning.
        metrics: Metrics of the step.
    """
    from vagen.launch.step import hand_on, run_stage

    hand_on(run_stage(run, "warm_start"), policy, metrics)
