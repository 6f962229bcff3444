"""The one definition of the training pipeline.

    build → warm start → evaluate → ( rollout → judge → advantage → update ) × N
          → evaluate → register

Every step hands on the folder and the SHA-256 of what it wrote, and the next one refuses anything
else. Folders travel as strings, not as input artifacts: a cluster would download those whole, used
or not. The exit handler closes the run however it ended; it knows the run by a pipeline parameter.
"""

import itertools
from typing import Literal, NamedTuple

from kfp import dsl
from kfp.dsl.base_component import BaseComponent
from kfp.dsl.pipeline_task import PipelineTask

from components.advantage.component import advantage
from components.build.component import build
from components.evaluate.component import evaluate
from components.finalize.component import finalize
from components.judge.component import judge
from components.register.component import register
from components.rollout.component import rollout
from components.train.component import train
from components.update.component import update
from components.warm_start.component import warm_start

Mode = Literal["staged", "fused"]

NAME = "vagen-train"
TEST, VALIDATION = "test", "val"


class Produced(NamedTuple):
    """What a step hands on (while a pipeline is defined: channels that will carry it)."""

    uri: str
    sha256: str


def training_pipeline(
    *,
    iterations: int,
    start: int = 0,
    mode: Mode = "staged",
    test_freq: int = 0,
    image: str | None = None,
) -> BaseComponent:
    """Builds the pipeline for the iterations `start` to `iterations - 1`.

    The steps around the iterations are always there: one whose result is committed returns it.

    Args:
        iterations: Length of the whole training.
        start: First iteration to run; with `start > 0` the parameters `source_uri` and
            `source_sha256` of the pipeline name the update before it.
        mode: `staged`, a task per step, or `fused`, one task for a stretch of iterations.
        test_freq: Evaluate on the validation levels every this many iterations; 0 is never.
        image: Container image of all steps; None leaves that of the components.

    Returns:
        A pipeline with the parameters `run_dir`, `source_uri`, `source_sha256`.

    Raises:
        ValueError: If `start` is not within the training.
    """
    if not 0 <= start <= iterations:
        raise ValueError(f"start is {start}: it must be between 0 and iterations, {iterations}")

    def placed(task: PipelineTask) -> PipelineTask:
        # A cache key knows neither the library's code nor a folder's content.
        task.set_caching_options(False)
        return task.set_container_image(image) if image else task

    # Not named "iteration": kfp takes "-iteration-" in a name for its own loops.
    @dsl.pipeline(name="round")
    def training_round(
        run_dir: str, iteration: int, source_uri: str, source_sha256: str
    ) -> Produced:
        """One iteration: rollout, judge, advantage, update."""
        produced = Produced(source_uri, source_sha256)
        for step in (rollout, judge, advantage, update):
            task = step(
                run_dir=run_dir,
                iteration=iteration,
                source_uri=produced.uri,
                source_sha256=produced.sha256,
            )
            produced = _outputs(placed(task))
        return produced

    @dsl.pipeline(name=NAME, description="Trains a vision-language agent; see the README.")
    def pipeline(run_dir: str, source_uri: str = "", source_sha256: str = "") -> None:
        def evaluated(name: str, split: str, policy: Produced) -> PipelineTask:
            task = evaluate(
                run_dir=run_dir,
                name=name,
                split=split,
                source_uri=policy.uri,
                source_sha256=policy.sha256,
            )
            return placed(task).set_display_name(f"evaluate {name}")

        closing = placed(finalize(run_dir=run_dir))
        with dsl.ExitHandler(closing, name="training"):
            levels = _outputs(placed(build(run_dir=run_dir)))
            first = placed(
                warm_start(run_dir=run_dir, source_uri=levels.uri, source_sha256=levels.sha256)
            )
            before = evaluated("warm_start", TEST, _outputs(first))
            policy = Produced(source_uri, source_sha256) if start else _outputs(first)
            # A run may have ended amid this evaluation.
            if start and test_freq and start % test_freq == 0 and start < iterations:
                before = evaluated(f"iteration-{start:04d}", VALIDATION, policy).after(before)
            for begin, end in _stretches(start, iterations, mode, test_freq):
                if mode == "fused":
                    task = placed(train(run_dir=run_dir, start=begin, stop=end))
                else:
                    task = training_round(
                        run_dir=run_dir,
                        iteration=begin,
                        source_uri=policy.uri,
                        source_sha256=policy.sha256,
                    ).set_display_name(f"iteration {begin}")
                before = task.after(before)
                policy = _outputs(task)
                if test_freq and end % test_freq == 0 and end < iterations:
                    before = evaluated(f"iteration-{end:04d}", VALIDATION, policy)
            final = evaluated("final", TEST, policy).after(before)
            placed(
                register(run_dir=run_dir, source_uri=policy.uri, source_sha256=policy.sha256)
            ).after(final)

    return pipeline


def _stretches(start: int, iterations: int, mode: Mode, test_freq: int) -> list[tuple[int, int]]:
    """Half-open ranges of iterations that one task or nested pipeline runs."""
    if mode == "staged":
        return [(iteration, iteration + 1) for iteration in range(start, iterations)]
    cuts = {start, iterations}
    if test_freq:
        cuts |= {cut for cut in range(start + 1, iterations) if cut % test_freq == 0}
    ordered = sorted(cuts)
    return list(itertools.pairwise(ordered))


def _outputs(task: PipelineTask) -> Produced:
    return Produced(task.outputs["uri"], task.outputs["sha256"])
