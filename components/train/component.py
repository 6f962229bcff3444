"""The `train` step."""

from kfp import dsl
from kfp.dsl import Metrics, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train(
    run: str,
    start: int,
    stop: int,
    policy: Output[Model],
    metrics: Output[Metrics],
):
    """Runs several iterations in one task: rollout, judge, advantage, update.

    Args:
        run: The run: its folder, or its URI in a store.
        start: First iteration.
        stop: Iteration to stop before.
        policy: The policy after the last iteration.
        metrics: Metrics of the step.
    """
    from vagen.launch.step import hand_on, run_stage

    hand_on(run_stage(run, "train", start=start, stop=stop), policy, metrics)
