"""Settings of a step on Kubernetes: image, resources, nodes, environment, timeouts, retries."""

from kfp import dsl, kubernetes
from kfp.dsl.pipeline_task import PipelineTask

from vagen.config import InfraConfig
from vagen.config.kubernetes import ResourcesConfig, read_toleration
from vagen.launch.step import OWN_POD

WAITS = frozenset({"begin", "finalize"})
"""Steps that do not compute, whatever the engine."""
BACKOFF_SECONDS = 30


def place(task: PipelineTask, step: str, infra: InfraConfig) -> PipelineTask:
    """Applies `infra.kubernetes` to a task, if there is that section.

    Args:
        task: The task of a pipeline in definition.
        step: Name of its component.
        infra: Its infrastructure.
    """
    config = infra.kubernetes
    if config is None:
        return task
    if config.image:
        task.set_container_image(config.image)
    _size(task, resources_of(step, infra), config.gpu_resource)
    # A step reads and writes the run through the store.
    kubernetes.empty_dir_mount(task, "runs", infra.output_dir)
    if config.models:
        kubernetes.mount_pvc(task, config.models, "/home/vagen/huggingface")
        task.set_env_variable("HF_HOME", "/home/vagen/huggingface")
    for key, value in config.node_selector.items():
        kubernetes.add_node_selector(task, key, value)
    for text in config.tolerations:
        kubernetes.add_toleration(task, **read_toleration(text)._asdict())
    for name, keys in config.config_maps.items():
        kubernetes.use_config_map_as_env(task, name, {key: key for key in keys}, optional=True)
    for name, keys in config.secrets.items():
        kubernetes.use_secret_as_env(task, name, {key: key for key in keys})
    if config.pull_secrets:
        kubernetes.set_image_pull_secrets(task, list(config.pull_secrets))
    kubernetes.set_security_context(
        task, run_as_user=config.user, run_as_group=config.user, run_as_non_root=True
    )
    labels = {
        "app.kubernetes.io/part-of": "vagen",
        "app.kubernetes.io/component": "step",
        "vagen.dev/step": step.replace("_", "-"),
        **config.cost_labels,
    }
    for label, value in labels.items():
        kubernetes.add_pod_label(task, label, value)
    # Images have a version (`pipelines.submit`), and trial clusters load them onto their nodes.
    kubernetes.set_image_pull_policy(task, "IfNotPresent")
    kubernetes.set_timeout(task, round(config.step_hours * 3600))
    # Kubeflow retries steps whose pod was lost (its default policy is `OnError`), but not steps
    # that exit, which the launcher has retried. The longest backoff counts from the start of the
    # first attempt, and would end a running later one.
    task.set_retry(
        config.retries,
        backoff_duration=f"{BACKOFF_SECONDS}s",
        backoff_factor=2.0,
        backoff_max_duration=f"{round(config.step_hours * 3600 * (config.retries + 2))}s",
    )
    return task


def limits(infra: InfraConfig) -> dsl.PipelineConfig:
    """Timeout of a pipeline run, and lifetime of its Workflow object."""
    config = infra.kubernetes
    hours = (config.deadline_hours, config.keep_hours) if config else (None, None)
    deadline, kept = (None if hour is None else round(3600 * hour) for hour in hours)
    return dsl.PipelineConfig(active_deadline_seconds=deadline, ttl_seconds_after_finished=kept)


def resources_of(step: str, infra: InfraConfig) -> ResourcesConfig:
    """Resources that a step's pod requests.

    Raises:
        ValueError: The infra has no `kubernetes` section.
    """
    config = infra.kubernetes
    if config is None:
        raise ValueError(
            "the infra has no `kubernetes` section: steps are processes of one machine"
        )
    if step in config.steps:
        return config.steps[step]
    asks = step in WAITS or (infra.engine == "verl" and step not in OWN_POD)
    return config.ask if asks else config.work


def _size(task: PipelineTask, resources: ResourcesConfig, gpu: str) -> None:
    """Limits memory to the request, and cores to at least one: a step first imports its libraries,
    which takes four times as long on a quarter of a core.
    """
    task.set_cpu_request(resources.cpu)
    task.set_cpu_limit("1" if cores(resources.cpu) < 1 else resources.cpu)
    task.set_memory_request(resources.memory).set_memory_limit(resources.memory)
    if resources.gpus:
        task.set_accelerator_type(gpu).set_accelerator_limit(resources.gpus)
    if resources.shm:
        kubernetes.empty_dir_mount(
            task, "shm", "/dev/shm", medium="Memory", size_limit=resources.shm
        )


def cores(quantity: str) -> float:
    """Number of cores of a Kubernetes quantity: `250m` is .25."""
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)
