"""What an experiment and an infra cannot do together."""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from vagen.config.base import ConfigError, Refusals
from vagen.config.infra import InfraConfig
from vagen.config.schema import ExperimentConfig
from vagen.envs.registry import get_environment, parse_env_config


def check_infra(experiment: ExperimentConfig, infra: InfraConfig) -> None:
    """Rejects an experiment on an infra that cannot run it.

    Keys of the infra begin with `infra.`.

    Raises:
        ConfigError: With one line per reason.
    """
    engine = _verl(experiment, infra) if infra.engine == "verl" else _local(experiment)
    parts = (
        _store(infra),
        _trackers(infra),
        _environments(experiment, infra),
        _judge(experiment, infra),
        engine,
    )
    _refuse(reason for part in parts for reason in part)


def check_verl(experiment: ExperimentConfig, infra: InfraConfig) -> None:
    """What of `check_infra` is about verl.

    Raises:
        ConfigError: With one line per reason.
    """
    _refuse(_verl(experiment, infra))


def _refuse(refusals: Iterable[tuple[str, str]]) -> None:
    lines = [f"`{key}`: {reason}" for key, reason in refusals]
    if lines:
        raise ConfigError("\n".join(lines))


def _store(infra: InfraConfig) -> Refusals:
    if infra.store is None:
        return
    scheme, separator, place = infra.store.partition("://")
    if not separator or scheme not in ("s3", "file") or not place.strip("/"):
        yield (
            "infra.store",
            f"{infra.store} is no store; write s3://bucket/prefix or file:///folder",
        )
    elif infra.store.rstrip("/") == Path(infra.output_dir).absolute().as_uri():
        yield (
            "infra.store",
            "it is infra.output_dir, where runs are anyway; choose another folder, or null",
        )


def _trackers(infra: InfraConfig) -> Refusals:
    for name in infra.trackers:
        if infra.kubernetes is None and find_spec(name) is None:
            yield "infra.trackers", f"{name} is not installed: pip install 'vagen[{name}]'"


def _environments(experiment: ExperimentConfig, infra: InfraConfig) -> Refusals:
    placement, url = infra.environments.placement, infra.environments.url
    if placement == "service" and url is None:
        yield (
            "infra.environments.url",
            "placement: service needs the address of the service, such as "
            "http://vagen-env.vagen.svc:8000",
        )
    if placement != "service" and url is not None:
        yield (
            "infra.environments.placement",
            f"{placement} does not use infra.environments.url; set it to service, or url to null",
        )
    if placement == "service":
        for env_id, spec in experiment.envs.items():
            for option, reason in parse_env_config(spec.env_name, spec.env_config).not_served():
                yield f"envs.{env_id}.env_config.{option}", reason
    if placement == "process":
        for env_id, spec in experiment.envs.items():
            if get_environment(spec.env_name).load().needs_process:
                yield (
                    "infra.environments.placement",
                    f"the simulator of {spec.env_name} (`envs.{env_id}`) has globals of its own "
                    "and needs worker processes; set it to auto, workers or service",
                )


def _judge(experiment: ExperimentConfig, infra: InfraConfig) -> Refusals:
    """The steps themselves judge where there is no Ray cluster, whose pods have secrets anyway."""
    cluster = infra.kubernetes
    if cluster is None or infra.has_ray_cluster:
        return
    given = {key for keys in cluster.secrets.values() for key in keys}
    for key, llm in experiment.judge.endpoints().items():
        if llm.base_url and llm.api_key_env and llm.api_key_env not in given:
            yield (
                "infra.kubernetes.secrets",
                f"no secret gives the steps {llm.api_key_env}, which {key}.api_key_env names; add "
                f"one, such as `vagen-judge: [{llm.api_key_env}]`, or set that to null",
            )


def _local(experiment: ExperimentConfig) -> Refusals:
    if experiment.rollout_manager.one_step_off:
        yield (
            "rollout_manager.one_step_off",
            "the local engine does one thing at a time; set it to false, or infra.engine to verl",
        )
    if experiment.rollout_manager.over_sampling_batch_size is not None:
        yield (
            "rollout_manager.over_sampling_batch_size",
            "the local engine plays every episode to its end; set it to null, or infra.engine to "
            "verl",
        )


def _verl(experiment: ExperimentConfig, infra: InfraConfig) -> Refusals:
    layout, data = infra.verl, experiment.data
    if layout.rollout_gpus % layout.nnodes:
        yield (
            "infra.verl.rollout_gpus",
            f"infra.verl.nnodes = {layout.nnodes} does not divide {layout.rollout_gpus}: every "
            "node has the same number of GPUs",
        )
    parallel, playing = layout.tensor_model_parallel_size, layout.server_gpus_per_node
    whole = "infra.verl.n_gpus_per_node"
    if layout.rollout_gpus:
        whole = "infra.verl.rollout_gpus / infra.verl.nnodes"
    if infra.kubernetes is not None and layout.ray_address is not None:
        yield (
            "infra.verl.ray_address",
            "infra.kubernetes makes the run a Ray cluster of its own; set it to null",
        )
    if layout.nnodes > 1 and layout.ray_address is None and infra.kubernetes is None:
        yield (
            "infra.verl.ray_address",
            f"infra.verl.nnodes = {layout.nnodes} needs a Ray cluster that is running; start one "
            "(`ray start`) and set it to `auto`",
        )
    elsewhere = infra.kubernetes is not None or layout.ray_address is not None
    if elsewhere and infra.device == "auto":
        yield (
            "infra.device",
            "auto looks at this machine, and the Ray cluster may have other ones; set it to cuda "
            "or cpu",
        )
    if playing % parallel:
        yield (
            "infra.verl.tensor_model_parallel_size",
            f"{parallel} does not divide {whole} = {playing}: a rollout server takes whole GPUs "
            "of one node",
        )
    per_node = layout.n_gpus_per_node
    ranks = layout.nnodes * per_node
    if layout.fsdp_size is not None and ranks % layout.fsdp_size:
        yield (
            "infra.verl.fsdp_size",
            f"{layout.fsdp_size} does not divide the {ranks} ranks: each group holds one copy; set "
            f"it to {per_node}, the ranks of a node, or to null",
        )
    if layout.rollout == "torch" and parallel > 1:
        yield (
            "infra.verl.tensor_model_parallel_size",
            "the torch rollout does not split a model; set it to 1, or infra.verl.rollout to vllm",
        )
    if layout.rollout == "vllm" and layout.gpu_memory_utilization == 0:
        yield ("infra.verl.gpu_memory_utilization", "vLLM needs memory; set it above 0")
    budget = layout.max_token_len_per_gpu
    if budget is not None and budget < data.max_trajectory_length:
        yield (
            "infra.verl.max_token_len_per_gpu",
            f"{budget} cannot hold one trajectory of data.max_trajectory_length = "
            f"{data.max_trajectory_length} tokens",
        )
    if infra.device.startswith("cuda:"):
        yield (
            "infra.device",
            f"{infra.device} is one GPU and Ray hands them out; take cuda, and "
            "CUDA_VISIBLE_DEVICES for some of them",
        )
