"""The training loop.

    levels → warm start → evaluation
    for each iteration: rollout → judge → advantage → PPO update (→ validation)
    evaluation → registration

The steps and their order are in `vagen.steps`. Every step is a function of `vagen.stages` that
commits one folder of the run, and does nothing if its folder is committed: calling `train` again
resumes a training. The same steps are a Kubeflow pipeline in `pipelines.definition`.
"""

from functools import partial
from importlib import import_module
from itertools import count

from vagen import steps
from vagen.run import layout
from vagen.run.run import Run
from vagen.stages.build import build
from vagen.stages.evaluate import evaluate
from vagen.stages.execute import closing, execute, stage_named
from vagen.stages.register import register
from vagen.stages.rollout import start_rollout
from vagen.stages.tracking import tracker_of
from vagen.stages.warm_start import warm_start
from vagen.tracking import Tracker


def train(run: Run) -> None:
    """Trains from the current state of the run; `finalize` closes the run in any case.

    Raises:
        ValueError: An error that the user can fix.
        StageFailed: A step failed.
    """
    step = partial(execute, run)
    with run.session(), closing(run):
        tracker = tracker_of(run)  # MLflow loads in parallel with the engine
        import_module("vagen.engines.local.engine")
        tracker.ready()  # fail early if MLflow cannot be used
        tracker.tell(Tracker.watch_machine)
        step(build)
        step(warm_start)
        step(evaluate, name=steps.WARM_START, split="test")
        iterate(run)
        step(evaluate, name=layout.FINAL, split="test")
        step(register)


def iterate(run: Run, start: int = 0, stop: int | None = None) -> None:
    """Iterations from `start` to before `stop`, or to the end, which an extension may move; fewer
    after an early stop.
    """
    step = partial(execute, run)
    for iteration in count(start):
        if iteration >= (run.read_length() if stop is None else stop):
            return
        for name in steps.ITERATION:
            step(stage_named(name), iteration=iteration)
            if name == "rollout" and run.experiment.rollout_manager.one_step_off:
                start_rollout(run, iteration + 1)
        if run.experiment.trainer.validates_after(iteration):
            step(evaluate, name=layout.validation(iteration + 1), split="val")
        if run.stop is not None:
            return
