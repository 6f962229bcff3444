"""Kubeflow pipelines for a training, and for evaluations of a run or of hosted models.

    begin → build → warm start → evaluate → stretch → stretch → … → evaluate → register

A *stretch* is one iteration with a task per step (`vagen.steps.ITERATION`; the update ends with a
validation if due), or with `infra.mode: fused` several iterations as one `train` task. The
stretches are a parameter of the pipeline run (`pipelines.schedule`), so that the size of the
pipeline does not depend on the training. Every task, group of tasks and condition costs an
additional pod of Kubeflow's, so there are few.

The order of steps is that of `vagen.train`. Steps read earlier results from the run; Kubeflow
passes only names and metrics. The exit handler closes the run in any case.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from importlib import import_module

from kfp import dsl
from kfp.dsl.base_component import BaseComponent
from kfp.dsl.pipeline_task import PipelineTask

from components import digest
from components.begin.component import begin
from components.build.component import build
from components.deploy.component import deploy
from components.evaluate.component import evaluate
from components.evaluate_model.component import evaluate_model
from components.finalize.component import finalize
from components.measure.component import measure
from components.register.component import register
from components.train.component import train
from components.warm_start.component import warm_start
from pipelines.placement import limits, place
from vagen import steps
from vagen.config import InfraConfig
from vagen.run import layout

TRAIN, EVALUATE, EVALUATE_MODELS = "vagen-train", "vagen-evaluate", "vagen-evaluate-models"
"""Names of the pipelines."""
ITERATION = [
    getattr(import_module(f"components.{name}.component"), name) for name in steps.ITERATION
]
"""Components of one iteration, in order."""


def training_pipeline(infra: InfraConfig, *, image: str | None = None) -> BaseComponent:
    """Builds the pipeline of a training.

    Args:
        infra: `infra.kubernetes` places the steps.
        image: Container image of all steps; None for that of the infra, or of the components.

    Returns:
        A pipeline with the parameters `run` (folder or URI), `stretches` (see
        `pipelines.schedule`), `experiment` and `infra` (texts of the files; empty if the run
        exists).
    """
    step = partial(_step, infra, image)
    namespace = infra.ray_namespace
    deploys = infra.kubernetes is not None and infra.kubernetes.deploy is not None

    # Not named "iteration", since kfp uses "-iteration-" in names of its own loops.
    @dsl.pipeline(name="stretches")
    def loop(run: str, stretches: list) -> None:
        """All iterations, one stretch after the other."""
        with dsl.ParallelFor(stretches, parallelism=1, name="in-order") as item:
            if infra.mode == "fused":
                step(train, run=run, start=item.start, stop=item.stop)
                return
            tasks = [step(each, run=run, iteration=item.start) for each in ITERATION]
            for before, after in itertools.pairwise(tasks):
                after.after(before)

    @dsl.pipeline(
        name=TRAIN,
        description="Trains a vision-language agent; see the README.",
        pipeline_config=limits(infra),
    )
    def pipeline(run: str, stretches: list, experiment: str = "", infra: str = "") -> None:
        with dsl.ExitHandler(step(finalize, run=run, namespace=namespace), name="training"):
            there = step(begin, run=run, experiment=experiment, infra=infra, code=digest())
            levels = step(build, run=run).after(there)
            first = step(warm_start, run=run).after(levels)
            before = step(evaluate, run=run, name=steps.WARM_START, split="test").after(first)
            learnt = loop(run=run, stretches=stretches).after(before)
            after = step(evaluate, run=run, name=layout.FINAL, split="test").after(learnt)
            before.set_display_name("evaluate the warm start")
            learnt.set_display_name("iterations")
            after.set_display_name("evaluate the result")
            registered = step(register, run=run).after(after)
            if deploys:
                name = f"deployed-{dsl.PIPELINE_JOB_ID_PLACEHOLDER}"
                step(deploy, run=run, name=name).after(registered)

    return pipeline


def evaluation_pipeline(infra: InfraConfig, *, image: str | None = None) -> BaseComponent:
    """Builds the pipeline that evaluates the newest policy of a run, once or by schedule.

    Returns:
        A pipeline with the parameters `run`, `split`, `count` (levels; 0 for all). The
        pipeline run names the evaluation, so that a retried step continues it.
    """

    @dsl.pipeline(name=EVALUATE, description="Measures the newest policy of a run.")
    def pipeline(run: str, split: str = "test", count: int = 0) -> None:
        name = f"measured-{dsl.PIPELINE_JOB_ID_PLACEHOLDER}"
        _step(infra, image, measure, run=run, name=name, split=split, count=count)

    return pipeline


def models_pipeline(
    infra: InfraConfig,
    models: Sequence[str],
    *,
    scheduled: bool = False,
    image: str | None = None,
) -> BaseComponent:
    """Builds the pipeline of an evaluation: a task per model, then one for the table.

    Args:
        infra: `infra.kubernetes` places the tasks.
        models: Names of the rows.
        scheduled: Whether each pipeline run is a separate evaluation; otherwise the folder decides.
        image: Container image of the tasks; None for that of the infra, or of the component.

    Returns:
        A pipeline with the parameters `evaluation` and `infra` (texts of the files), and `folder`
        (URI of the evaluation).
    """
    step = partial(_step, infra, image, evaluate_model)

    @dsl.pipeline(
        name=EVALUATE_MODELS,
        description="Measures models on the same levels.",
        pipeline_config=limits(infra),
    )
    def pipeline(evaluation: str, infra: str, folder: str) -> None:
        uri = f"{folder}-{dsl.PIPELINE_JOB_ID_PLACEHOLDER}" if scheduled else folder
        tasks = [
            step(evaluation=evaluation, infra=infra, folder=uri, model=model) for model in models
        ]
        table = step(evaluation=evaluation, infra=infra, folder=uri, model="").after(*tasks)
        for task, name in zip([*tasks, table], [*models, "table"], strict=True):
            task.set_display_name(name)

    return pipeline


def _step(
    where: InfraConfig, image: str | None, component: BaseComponent, /, **inputs: object
) -> PipelineTask:
    task = component(**inputs)
    # A cache key includes neither the library's code nor the content of folders.
    task.set_caching_options(False)
    place(task, component.name.replace("-", "_"), where)
    return task.set_container_image(image) if image else task
