"""The infra: where a run takes place, and on what."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from vagen.config.base import AWS_KEYS, Fraction, Section, no_credentials
from vagen.config.kubernetes import KubernetesConfig

SCRATCH = "VAGEN_SCRATCH"
"""Environment variable: folder for runs of a store, instead of their `infra.output_dir`."""
_MLFLOW = (
    "a server's are read from MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD or from "
    "MLFLOW_TRACKING_TOKEN, PostgreSQL's from PGPASSWORD"
)


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", text):
        raise ValueError("use auto, cpu, cuda or cuda:N")
    return text


def dotted(tree: Any) -> Any:
    """Nested mappings as one of dotted keys; of two that name the same the later one stays."""
    if not isinstance(tree, dict):
        return tree
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        inside = isinstance(value, dict) and value
        flat |= {f"{key}.{k}": v for k, v in dotted(value).items()} if inside else {key: value}
    return flat


class VerlConfig(Section):
    """Layout of the distributed engine (`engine: verl`) on Ray."""

    ray_address: Annotated[str, no_credentials("Ray reads RAY_AUTH_TOKEN")] | None = None
    """Address of a running Ray cluster (`auto`, `ray://...`); null starts one on this machine."""
    nnodes: PositiveInt = 1
    """Training nodes."""
    n_gpus_per_node: PositiveInt = 1
    """Ranks per node, one GPU each; processes on a machine without GPUs."""
    rollout_gpus: NonNegativeInt = 0
    """GPUs reserved for rollout servers, spread evenly over the nodes; 0: servers share the
    training GPUs."""
    rollout: Literal["vllm", "torch"] = "vllm"
    """Generation backend: vLLM servers, or plain torch for small models and tests."""
    tensor_model_parallel_size: PositiveInt = 1
    """GPUs per vLLM server."""
    gpu_memory_utilization: Fraction = 0.5
    """Share of GPU memory for vLLM's weights and key/value cache."""
    request_seeds: bool | Literal["auto"] = "auto"
    """Send vLLM a seed with every request: a repeated rollout has the same tokens as far as batches
    do not change the arithmetic, and vLLM draws row by row (about 1 ms a step for 128 sequences on
    a GPU). False: each server gets a seed per rollout, and a repeated rollout has other tokens of
    the same distribution. `auto`: only without GPUs. The torch server always takes seeds."""
    attention: Literal["packed", "sdpa"] = "packed"
    """Attention of actor and critic. `packed`: rows without padding, torch kernels per row. `sdpa`:
    padded rows, the attention of `transformers`."""
    max_token_len_per_gpu: PositiveInt | None = None
    """Tokens of a micro-batch per rank; null takes `actor.ppo_max_token_len`."""
    gpu_memory_gib: PositiveFloat = 80.0
    """Memory of a GPU, for `vagen plan`; an H100 has 80."""
    host_memory_gib: PositiveFloat | None = None
    """Memory of a node, for `vagen plan`; null skips the check."""
    scratch_gib: PositiveFloat | None = None
    """Disk space of `output_dir`, for `vagen plan`; null skips the check."""
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    """Recompute activations in the backward pass. `auto`: only if `vagen plan` finds too little GPU
    memory; without a plan, always."""
    fsdp_size: PositiveInt | None = None
    """Ranks that share one copy of weights, gradients and moments (hybrid sharding), such as the
    GPUs of a node. null: all ranks."""
    param_offload: bool = False
    """Keep idle weights in host memory."""
    optimizer_offload: bool = False
    """Keep idle optimizer state in host memory."""
    agent_workers: PositiveInt = 8
    """Processes that play episodes."""
    extra: Annotated[dict[str, Any], BeforeValidator(dotted)] = Field(default={})
    """Other verl options by dotted key, with priority over all else; keys that another option sets
    are refused."""

    @property
    def server_gpus_per_node(self) -> int:
        """GPUs of a node that hold rollout servers."""
        return self.rollout_gpus // self.nnodes if self.rollout_gpus else self.n_gpus_per_node


class LocalConfig(Section):
    """The engine in one process (`engine: local`) on a GPU."""

    gradient_checkpointing: bool = False
    """Recompute activations and logits in the backward pass: less memory, a third more time."""
    cuda_graphs: bool = False
    """Record the decode steps of generation as CUDA graphs, which saves launching their kernels."""
    gpu_memory_gib: PositiveFloat | None = None
    """Memory of the GPU, for `vagen plan`; null takes the GPU at hand."""


class S3Config(Section):
    """Connection to an `s3://` store.

    Keys come from boto3's usual chain (environment, profile, pod role), not from this file.
    """

    endpoint_url: Annotated[str, no_credentials(AWS_KEYS)] | None = None
    """Endpoint of a store other than AWS; null takes `AWS_ENDPOINT_URL_S3`, else AWS."""
    region: str | None = None
    """Region; null takes `AWS_REGION`, else the profile's, else us-east-1."""
    addressing_style: Literal["auto", "path", "virtual"] = "auto"
    """Bucket in the path or in the host name; `auto` is `virtual` at AWS and `path` elsewhere."""
    part_size_mib: int = Field(default=32, ge=5, le=5120)
    """Part size of multipart uploads, in MiB; larger files get larger parts, 10,000 at most."""
    max_concurrency: PositiveInt = 8
    """Parallel requests; as many parts are held in memory."""
    retries: PositiveInt = 8
    """Attempts at a request before it fails."""
    retired: ClassVar[dict[str, Any]] = {"ca_bundle": None}


def _url(text: str) -> str:
    if not re.fullmatch(r"https?://[^/\s@]+(/[^\s?#]*)?", text):
        raise ValueError(
            "write http://host:port or https://host, without user or query; the "
            "token is read from the environment variable that token_env names"
        )
    return text.rstrip("/")


class EnvironmentsConfig(Section):
    """Where environments run."""

    placement: Literal["auto", "process", "workers", "service"] = "auto"
    """`process`: in the process that plays. `workers`: in worker processes. `service`: behind HTTP
    (docs/service.md). `auto`: worker processes for simulators with globals or a graphics context,
    otherwise `process`."""
    workers: PositiveInt | None = None
    """Worker processes; null: one per core, at most 8, shared by the processes that play."""
    answer_seconds: PositiveFloat = 300.0
    """Seconds after which an unanswered call counts as a failure of the worker or service."""
    url: Annotated[str, AfterValidator(_url)] | None = None
    """Address of the service. Sessions are spread over all addresses of its name."""
    token_env: str = "VAGEN_ENV_TOKEN"
    """Environment variable with the service's token; unset: no token."""
    retry_seconds: NonNegativeFloat = 120.0
    """Seconds for which a request is repeated while the service is away or busy."""
    retired: ClassVar[dict[str, Any]] = {"batch": 64, "requests": 8}


class InfraConfig(Section):
    """Where a run takes place: one YAML file under `experiments/infra/`."""

    output_dir: str = "outputs"
    """Folder that holds one folder per run."""
    store: Annotated[str, no_credentials(AWS_KEYS)] | None = None
    """Second place for runs: `s3://bucket/prefix` or `file:///folder`; null keeps them in
    `output_dir` only."""
    s3: S3Config = S3Config()
    judge_cache: str | None = None
    """Folder of cached language-model verdicts, shared by runs that name it, on a local disk or its
    own volume; null: `judge-cache` beside the runs."""
    environments: EnvironmentsConfig = EnvironmentsConfig()
    engine: Literal["local", "verl"] = "local"
    """`local`: torch in one process. `verl`: verl on Ray, on one or more machines."""
    local: LocalConfig = LocalConfig()
    verl: VerlConfig = VerlConfig()
    device: Annotated[str, AfterValidator(_device)] = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type that networks compute in. Weights that are trained are float32 for the optimizer."""
    deterministic: bool = False
    """Deterministic kernels on a GPU, slower; on a CPU they always are."""
    threads: PositiveInt | None = None
    """CPU cores to use; null takes all. The local engine runs one single-threaded process per core;
    the number does not change results."""
    mode: Literal["staged", "fused"] = "staged"
    """`staged`: every step is a pipeline task. `fused`: one task runs several iterations."""
    iterations_per_task: PositiveInt | None = None
    """Iterations per task with `mode: fused`; null: all."""
    save_freq: PositiveInt = 1
    """Iterations between checkpoints. A killed run repeats the updates since the last one from
    stored batches, with the same numbers."""
    profile_iteration: NonNegativeInt | None = None
    """Iteration, from 0, that torch's profiler records on the first rank, as Chrome traces in
    `profiles` of the run's folder."""
    gpu_hour_price: NonNegativeFloat | None = None
    """Price of a GPU-hour in any currency, for a run's cost in MLflow, summary and report; null
    reports GPU-hours only."""
    trackers: list[Literal["tensorboard", "wandb"]] = Field(default=[])
    """Trackers in addition to MLflow. `tensorboard`: event files in `tensorboard` of the run's
    folder. `wandb`: a run in the project `trainer.project_name`, configured by W&B's environment
    variables."""
    mlflow_tracking_uri: Annotated[str, no_credentials(_MLFLOW)] | None = None
    """MLflow server; null: an SQLite file in `output_dir`. User and password come from
    `MLFLOW_TRACKING_USERNAME` and `MLFLOW_TRACKING_PASSWORD`."""
    mlflow_parent_run: str | None = None
    """Id of the parent MLflow run; `vagen sweep` sets it."""
    kubernetes: KubernetesConfig | None = None
    """Cluster that `vagen submit` sends the pipeline to; null: this machine."""

    @property
    def runs_folder(self) -> Path:
        """Absolute folder that holds the runs: `VAGEN_SCRATCH` where there is a store and the
        variable is set, else `output_dir`.
        """
        scratch = os.environ.get(SCRATCH) if self.store else None
        return Path(scratch or self.output_dir).absolute()

    @property
    def has_ray_cluster(self) -> bool:
        """Whether a run has a Ray cluster of its own on Kubernetes."""
        return bool(self.ray_namespace)

    @property
    def ray_namespace(self) -> str:
        """Kubernetes namespace of the run's own Ray cluster; empty if it has none."""
        return self.kubernetes.namespace if self.kubernetes and self.engine == "verl" else ""
