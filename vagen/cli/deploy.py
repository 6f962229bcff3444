"""`vagen deploy`, `vagen undeploy`: a run's agent on Kubernetes."""

import time
from argparse import Namespace

from vagen.cli.common import command, find_run
from vagen.cli.main import FAILED
from vagen.cluster import connect
from vagen.deploy import deploy as deploy_agent
from vagen.deploy import undeploy as undeploy_agent
from vagen.experiment.load import load_infra
from vagen.progress import close
from vagen.run import layout
from vagen.run.run import Run


def deploy(options: Namespace) -> int:
    """Deploys the agent of a run; returns 1 if it was rolled back."""
    run = Run.open(find_run(options.run))
    infra = load_infra(options.infra or run.path / layout.INFRA, options.infra_overrides)
    try:
        found = deploy_agent(
            run,
            connect(options.namespace, options.context),
            infra,
            f"deployed-{time.strftime('%Y%m%d-%H%M%S')}",
            count=options.count,
            share=options.share,
            plain=options.plain,
            context=options.context,
        )
    finally:
        close()
    print(f"{found.text}\n{found.folder}  ({command('view', found.folder)})")
    return 0 if found.verdict.passed else FAILED


def undeploy(options: Namespace) -> int:
    """Deletes an agent; returns 1 if there is none."""
    kube = connect(options.namespace, options.context)
    deleted = undeploy_agent(kube, options.agent)
    print(
        "\n".join(f"deleted: {each}" for each in deleted)
        or f"namespace {kube.namespace} has no agent {options.agent}"
    )
    return 0 if deleted else FAILED
