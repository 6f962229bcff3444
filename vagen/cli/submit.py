"""`vagen submit`: the same training on Kubernetes."""

import time
from argparse import Namespace
from pathlib import Path

from vagen.cli.common import load_configs, stored_configs
from vagen.cli.evaluate_models import is_evaluation
from vagen.cli.main import UsageError
from vagen.config.schema import is_name
from vagen.experiment.load import load_infra
from vagen.run import layout

NAME_LENGTH = 40
"""Ray clusters and jobs are named after the run, and Kubernetes has 63 characters."""


def submit(options: Namespace) -> None:
    """Sends a training, or an evaluation of one, to Kubeflow."""
    from pipelines.submit import Kubeflow, kubernetes_of, run_uri

    if options.evaluate and options.clone:
        raise UsageError("--evaluate and --clone are two things: one at a time")
    if options.cron and not options.evaluate:
        raise UsageError("--cron goes with --evaluate: a training is started once")
    if options.evaluate and is_evaluation(Path(options.evaluate)):
        _submit_evaluation(options)
        return
    origin = options.evaluate or options.clone
    experiment, infra = stored_configs(origin, options) if origin else load_configs(options)
    kubernetes_of(infra)
    if options.evaluate:
        kubeflow = Kubeflow(options.host, options.kfp_namespace)
        sent = kubeflow.evaluate(
            experiment,
            infra,
            options.evaluate,
            split=options.levels or "test",
            count=options.count or 0,
            cron=options.cron,
            image=options.image,
        )
        print(sent.url)
        return
    name = _name(options, experiment.name)
    run = run_uri(infra, name)
    sent = Kubeflow(options.host, options.kfp_namespace).train(
        experiment, infra, run, image=options.image
    )
    print(f"{run}\n{sent.url}\nmake status RUN={name}   make logs RUN={name}")


def _submit_evaluation(options: Namespace) -> None:
    """Sends an evaluation of hosted models to Kubeflow."""
    from pipelines.submit import Kubeflow, kubernetes_of, run_uri
    from vagen.evaluation import load_evaluation

    if options.experiment or options.overrides:
        raise UsageError(f"{options.evaluate} says what is evaluated: put the rest into the file")
    flags = {"levels": options.levels, "count": options.count}
    overrides = [f"{name}={value}" for name, value in flags.items() if value is not None]
    found = load_evaluation(Path(options.evaluate), [*options.eval_overrides, *overrides])
    infra = load_infra(options.infra, options.infra_overrides)
    kubernetes_of(infra)
    uri = run_uri(infra, f"{layout.EVALUATIONS}/{_name(options, found.name)}")
    kubeflow = Kubeflow(options.host, options.kfp_namespace)
    sent = kubeflow.evaluate_models(found, infra, uri, cron=options.cron, image=options.image)
    each = f"{uri}-ID, the pipeline run's," if options.cron else uri
    print(f"{each}\n{sent.url}\nvagen eval {each} shows it when it has ended")


def _name(options: Namespace, kind: str) -> str:
    name = options.name or f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}"
    if not is_name(name) or len(name) > NAME_LENGTH:
        raise UsageError(
            f"--name is {name!r}; use up to {NAME_LENGTH} letters, digits, `-`, `_`: Kubernetes "
            "objects are named after it"
        )
    return name
