"""A run's stages on Kubernetes, seen from a step's pod: RayJobs on the run's own Ray cluster.

Names follow from the run, so that a pod that is started again finds what the one before it began,
and waits for that instead of beginning a second attempt.
"""

from pathlib import Path
from typing import Any

from vagen import cluster
from vagen.config import InfraConfig
from vagen.config.kubernetes import KubernetesConfig
from vagen.stages.routing import run_name
from vagen.stages.session import StageError, StageFailed
from vagen.stages.step import RAY_LOGS, command, name_of, read_reply

LOG_SECONDS = 300.0
"""What saving logs may take: the cluster costs money meanwhile."""


def bring_up(run: str, infra: InfraConfig) -> cluster.Kube:
    """Makes the run's Ray cluster if it has none, and waits until all of it is ready.

    Args:
        run: URI of the run.
        infra: Of the run.

    Raises:
        ClusterError: It cannot be had: says why, and what to do.
    """
    config, name = _config(infra), run_name(run)
    kube = cluster.connect(config.namespace)
    manifest = cluster.render_raycluster(
        cluster.read_template(kube, config.template),
        name=cluster.cluster_name(name),
        run=name,
        workers=infra.verl.nnodes,
        gpus_per_worker=0 if infra.device == "cpu" else infra.verl.n_gpus_per_node,
        ttl_hours=config.ttl_hours,
        image=config.ray_image,
        queue=config.queue,
    )
    cluster.ensure_raycluster(kube, manifest)
    cluster.await_raycluster(
        kube,
        cluster.cluster_name(name),
        pending_deadline=60 * config.pending_minutes,
        report=_say,
    )
    return kube


def ask(run: str, infra: InfraConfig, stage: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Has a stage executed in the run's Ray cluster, and prints what it logs meanwhile.

    Args:
        run: URI of the run.
        infra: Of the run.
        stage: A stage, or `vagen.stages.step.TRAIN`.
        arguments: Of the stage.

    Returns:
        What the stage returned.

    Raises:
        StageError: The stage refused what the user gave it.
        StageFailed: It broke; the text ends with the last lines of its log.
        ClusterError: The cluster cannot be had, or a deadline has passed.
    """
    config, task = _config(infra), name_of(run, stage, arguments)
    pending, seconds = 60 * config.pending_minutes, 3600 * config.step_hours
    kube = bring_up(run, infra)
    try:
        _follow(kube, run, config, stage, arguments, pending=pending, running=seconds)
    except cluster.JobFailed as failure:
        reply = read_reply(run, task) or {}
        refused = reply.get("kind") == "user"
        text = f"{reply['message']}\n{failure}" if "message" in reply else str(failure)
        raise (StageError if refused else StageFailed)(text) from failure
    reply = read_reply(run, task)
    if reply is None:
        raise StageFailed(f"RayJob {task} has succeeded, and {run} has no reply of it")
    return reply["result"]


def save_ray_logs(run: str, infra: InfraConfig) -> None:
    """Has the Ray cluster put its own logs into the store, if it is well enough for that.

    Raises:
        ClusterError: It does not within a few minutes.
    """
    config, name = _config(infra), run_name(run)
    kube = cluster.connect(config.namespace)
    found = cluster.find_raycluster(kube, cluster.cluster_name(name))
    if found is None or not cluster.is_ready(found):
        _say("the Ray cluster is not well: what Ray wrote on its nodes is lost")
        return
    _follow(kube, run, config, RAY_LOGS, {}, pending=LOG_SECONDS, running=LOG_SECONDS)


def save_logs(run: str, infra: InfraConfig, folder: Path) -> None:
    """Writes the logs of the run's Ray cluster into a folder; says which cannot be had."""
    kube = cluster.connect(_config(infra).namespace)
    for missing in cluster.harvest_logs(kube, run_name(run), folder).missing:
        _say(f"not saved: {missing}")


def delete(run: str, infra: InfraConfig) -> None:
    """Deletes the run's Ray cluster and jobs, whatever state they are in."""
    kube, name = cluster.connect(_config(infra).namespace), run_name(run)
    cluster.delete_raycluster(kube, cluster.cluster_name(name))
    cluster.delete_rayjobs(kube, name)


def _follow(
    kube: cluster.Kube,
    run: str,
    config: KubernetesConfig,
    stage: str,
    arguments: dict[str, Any],
    *,
    pending: float,
    running: float,
) -> None:
    """Follows the RayJob of a stage to its end, a new one if there is none; seconds."""
    name = run_name(run)
    job = cluster.ensure_rayjob(
        kube,
        cluster=cluster.cluster_name(name),
        task=name_of(run, stage, arguments),
        run=name,
        entrypoint=command(run, stage, arguments),
        ttl_hours=config.ttl_hours,
        active_deadline=running,
    )
    cluster.await_rayjob(
        kube,
        job["metadata"]["name"],
        on_log=_say,
        pending_deadline=pending,
        running_deadline=running,
        report=_say,
    )


def _config(infra: InfraConfig) -> KubernetesConfig:
    assert infra.kubernetes is not None
    return infra.kubernetes


def _say(text: str) -> None:
    print(text, flush=True)
