"""`vagen submit`: the same training on Kubernetes."""

import time
from argparse import Namespace

from vagen.cli.common import load_configs, stored_configs
from vagen.cli.main import UsageError
from vagen.config.schema import is_name

NAME_LENGTH = 40
"""Ray clusters and jobs are named after the run, and Kubernetes has 63 characters."""


def submit(options: Namespace) -> None:
    """Sends a training, or an evaluation of one, to Kubeflow."""
    from pipelines.submit import Kubeflow, kubernetes_of, run_uri

    if options.evaluate and options.clone:
        raise UsageError("--evaluate and --clone are two things: one at a time")
    if options.cron and not options.evaluate:
        raise UsageError("--cron goes with --evaluate RUN: a training is started once")
    origin = options.evaluate or options.clone
    experiment, infra = stored_configs(origin, options) if origin else load_configs(options)
    kubernetes_of(infra)
    if options.evaluate:
        kubeflow = Kubeflow(options.host, options.kfp_namespace)
        sent = kubeflow.evaluate(
            experiment,
            infra,
            options.evaluate,
            split=options.levels,
            count=options.count or 0,
            cron=options.cron,
            image=options.image,
        )
        print(sent.url)
        return
    name = options.name or f"{experiment.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    if not is_name(name) or len(name) > NAME_LENGTH:
        raise UsageError(
            f"--name is {name!r}; use up to {NAME_LENGTH} letters, digits, `-`, `_`: Kubernetes "
            "objects are named after it"
        )
    run = run_uri(infra, name)
    sent = Kubeflow(options.host, options.kfp_namespace).train(
        experiment, infra, run, image=options.image
    )
    print(f"{run}\n{sent.url}\nmake status RUN={name}   make logs RUN={name}")
