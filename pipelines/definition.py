"""The one definition of the training pipeline, and that of an evaluation.

    begin → build → warm start → evaluate → ( rollout → judge → advantage → update ) × N
          → evaluate → register

Every step hands on the folder and the SHA-256 of what it wrote, and the next one refuses anything
else. Folders travel as strings, not as input artifacts: a cluster would download those whole, used
or not. The exit handler closes the run however it ended; it knows the run by a pipeline parameter.
"""

import itertools
from functools import partial
from typing import NamedTuple

from kfp import dsl
from kfp.dsl.base_component import BaseComponent
from kfp.dsl.pipeline_task import PipelineTask

from components.advantage.component import advantage
from components.begin.component import begin
from components.build.component import build
from components.evaluate.component import evaluate
from components.finalize.component import finalize
from components.judge.component import judge
from components.measure.component import measure
from components.register.component import register
from components.rollout.component import rollout
from components.train.component import train
from components.update.component import update
from components.warm_start.component import warm_start
from pipelines.placement import place
from vagen.config import InfraConfig

TRAIN, EVALUATE = "vagen-train", "vagen-evaluate"
"""Names of the pipelines."""
TEST, VALIDATION = "test", "val"


class Produced(NamedTuple):
    """What a step hands on (while a pipeline is defined: channels that will carry it)."""

    uri: str
    sha256: str


def training_pipeline(
    infra: InfraConfig,
    *,
    iterations: int,
    start: int = 0,
    source: Produced | None = None,
    test_freq: int = 0,
    image: str | None = None,
) -> BaseComponent:
    """Builds the pipeline for the iterations `start` to `iterations - 1`.

    The steps around the iterations are always there: one whose result is committed returns it.

    Args:
        infra: Where it runs: `infra.mode` is `staged`, a task per step, or `fused`, one task for a
            stretch of iterations; `infra.kubernetes` places the steps.
        iterations: Length of the whole training.
        start: First iteration to run.
        source: The update before it, with `start > 0`.
        test_freq: Evaluate on the validation levels every this many iterations; 0 is never.
        image: Container image of all steps; None leaves that of the infra, or of the components.

    Returns:
        A pipeline with the parameters `run` (folder or URI), `experiment` and `infra` (texts of
        the files; empty if the run is there already).

    Raises:
        ValueError: If `start` is not within the training, or nothing says where it goes on from.
    """
    if not 0 <= start <= iterations:
        raise ValueError(f"start is {start}: it must be between 0 and iterations, {iterations}")
    if start and source is None:
        raise ValueError(f"start is {start}: source must be what the update before it wrote")

    fused = infra.mode == "fused"
    every = infra.iterations_per_task if fused else 1
    stretches = _stretches(start, iterations, every, test_freq)
    step = partial(_step, infra, image)

    # Not named "iteration": kfp takes "-iteration-" in a name for its own loops.
    @dsl.pipeline(name="round")
    def training_round(run: str, iteration: int, source_uri: str, source_sha256: str) -> Produced:
        """One iteration: rollout, judge, advantage, update."""
        produced = Produced(source_uri, source_sha256)
        for component in (rollout, judge, advantage, update):
            task = step(
                component,
                run=run,
                iteration=iteration,
                source_uri=produced.uri,
                source_sha256=produced.sha256,
            )
            produced = _outputs(task)
        return produced

    @dsl.pipeline(name=TRAIN, description="Trains a vision-language agent; see the README.")
    def pipeline(run: str, experiment: str = "", infra: str = "") -> None:
        def evaluated(name: str, split: str, policy: Produced) -> PipelineTask:
            task = step(
                evaluate,
                run=run,
                name=name,
                split=split,
                source_uri=policy.uri,
                source_sha256=policy.sha256,
            )
            return task.set_display_name(f"evaluate {name}")

        closing = step(finalize, run=run)
        with dsl.ExitHandler(closing, name="training"):
            there = step(begin, run=run, experiment=experiment, infra=infra)
            levels = _outputs(step(build, run=run).after(there))
            first = step(warm_start, run=run, source_uri=levels.uri, source_sha256=levels.sha256)
            before = evaluated("warm_start", TEST, _outputs(first))
            policy = source or _outputs(first)
            # A run may have ended amid this evaluation.
            if start and test_freq and start % test_freq == 0 and start < iterations:
                before = evaluated(f"iteration-{start:04d}", VALIDATION, policy).after(before)
            for begins, ends in stretches:
                if fused:
                    task = step(train, run=run, start=begins, stop=ends)
                else:
                    task = training_round(
                        run=run,
                        iteration=begins,
                        source_uri=policy.uri,
                        source_sha256=policy.sha256,
                    ).set_display_name(f"iteration {begins}")
                before = task.after(before)
                policy = _outputs(task)
                if test_freq and ends % test_freq == 0 and ends < iterations:
                    before = evaluated(f"iteration-{ends:04d}", VALIDATION, policy)
            final = evaluated("final", TEST, policy).after(before)
            step(register, run=run, source_uri=policy.uri, source_sha256=policy.sha256).after(final)

    return pipeline


def evaluation_pipeline(infra: InfraConfig, *, image: str | None = None) -> BaseComponent:
    """Builds the pipeline that measures the newest policy of a run, for once or by schedule.

    Returns:
        A pipeline with the parameters `run`, `split`, `count` (levels; 0 takes all). The evaluation
        is named by the pipeline run, so that a step tried again goes on with the same one.
    """

    @dsl.pipeline(name=EVALUATE, description="Measures the newest policy of a run.")
    def pipeline(run: str, split: str = TEST, count: int = 0) -> None:
        name = f"measured-{dsl.PIPELINE_JOB_ID_PLACEHOLDER}"
        _step(infra, image, measure, run=run, name=name, split=split, count=count)

    return pipeline


def _step(
    where: InfraConfig, image: str | None, component: BaseComponent, /, **inputs: object
) -> PipelineTask:
    task = component(**inputs)
    # A cache key knows neither the library's code nor a folder's content.
    task.set_caching_options(False)
    place(task, component.name.replace("-", "_"), where)
    return task.set_container_image(image) if image else task


def _stretches(
    start: int, iterations: int, every: int | None, test_freq: int
) -> list[tuple[int, int]]:
    """Half-open ranges of iterations that one task or nested pipeline runs.

    Args:
        start: First iteration.
        iterations: Length of the whole training.
        every: Iterations of a range; None takes all.
        test_freq: A range ends where an evaluation follows; 0: there are none.
    """
    cuts = {start, iterations}
    for length in (every, test_freq):
        if length:
            cuts |= {cut for cut in range(start + 1, iterations) if cut % length == 0}
    return list(itertools.pairwise(sorted(cuts)))


def _outputs(task: PipelineTask) -> Produced:
    return Produced(task.outputs["uri"], task.outputs["sha256"])
