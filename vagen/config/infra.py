"""The infra: where a run takes place, and on what."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from vagen.config.addresses import AWS_KEYS, no_credentials
from vagen.config.base import Fraction, Section
from vagen.config.environments import EnvironmentsConfig
from vagen.config.kubernetes import KubernetesConfig
from vagen.config.s3 import S3Config

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
    """Ray and verl: how the distributed engine is laid out (`engine: verl`)."""

    ray_address: Annotated[str, no_credentials("Ray reads RAY_AUTH_TOKEN")] | None = None
    """A running Ray cluster (`auto`, `ray://...`); null starts one on this machine."""
    nnodes: PositiveInt = 1
    """Nodes that train."""
    n_gpus_per_node: PositiveInt = 1
    """Ranks per node, a GPU each; on a machine without GPU, processes."""
    rollout_gpus: NonNegativeInt = 0
    """GPUs of the rollout servers alone, beside those that train, shared out evenly over the nodes;
    0: the servers are on the GPUs that train."""
    rollout: Literal["vllm", "torch"] = "vllm"
    """What generates: vLLM servers, or plain torch (small models, tests)."""
    tensor_model_parallel_size: PositiveInt = 1
    """Ranks that share one vLLM server."""
    gpu_memory_utilization: Fraction = 0.5
    """Share of a GPU's memory that vLLM may take, weights and key/value cache."""
    attention: Literal["packed", "sdpa"] = "packed"
    """Attention of actor and critic. `packed`: rows lie end to end, without padding, and torch's
    kernels read them one by one; `sdpa`: that of `transformers`, over padded rows."""
    max_token_len_per_gpu: PositiveInt | None = None
    """Tokens of a micro batch on one rank; null takes `actor.ppo_max_token_len`."""
    gpu_memory_gib: PositiveFloat = 80.0
    """Memory of a GPU, for `vagen plan`; an H100 has 80."""
    host_memory_gib: PositiveFloat | None = None
    """Memory of a node, for `vagen plan`; null: it is not compared."""
    scratch_gib: PositiveFloat | None = None
    """Disk for `output_dir`, for `vagen plan`; null: it is not compared."""
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    """Compute activations again in the backward pass instead of keeping them. `auto`: where
    `vagen plan` finds that a GPU could not keep them; without a plan, always."""
    fsdp_size: PositiveInt | None = None
    """Ranks that share one copy of weights, gradients and moments; every such group has a copy of
    its own (hybrid sharding). With several nodes the GPUs of one keep gathering weights within it.
    null: all ranks share one copy."""
    param_offload: bool = False
    """Keep weights in host memory while they are not used."""
    optimizer_offload: bool = False
    """Keep optimizer state in host memory while it is not used."""
    agent_workers: PositiveInt = 8
    """Processes that play episodes."""
    extra: Annotated[dict[str, Any], BeforeValidator(dotted)] = Field(default={})
    """Any other of verl's own options by their dotted keys, laid over all the rest; those that an
    option of ours sets are refused."""

    @property
    def server_gpus_per_node(self) -> int:
        """GPUs of a node that hold rollout servers."""
        return self.rollout_gpus // self.nnodes if self.rollout_gpus else self.n_gpus_per_node


class InfraConfig(Section):
    """Where it runs and on what: one YAML file under `experiments/infra/`."""

    output_dir: str = "outputs"
    """Folder that receives one folder per run."""
    store: Annotated[str, no_credentials(AWS_KEYS)] | None = None
    """Where runs are kept as well: `s3://bucket/prefix` or `file:///folder`, each under its name;
    null keeps them in `output_dir` only."""
    s3: S3Config = S3Config()
    judge_cache: str | None = None
    """Folder for what the judge's language model has answered, shared by all runs that name it, on
    a disk of the machine or a volume of its own; null: `judge-cache` beside the runs."""
    environments: EnvironmentsConfig = EnvironmentsConfig()
    engine: Literal["local", "verl"] = "local"
    """`local`: torch in one process; `verl`: verl on Ray, one machine or many."""
    verl: VerlConfig = VerlConfig()
    device: Annotated[str, AfterValidator(_device)] = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of weights and activations."""
    threads: PositiveInt | None = None
    """Cores to compute on; null takes all. The local engine on a CPU has a process of one thread on
    each, which changes no number."""
    mode: Literal["staged", "fused"] = "staged"
    """`staged`: every step is a pipeline task; `fused`: one task runs all iterations."""
    iterations_per_task: PositiveInt | None = None
    """Iterations of one task with `mode: fused`; null: all."""
    save_freq: PositiveInt = 1
    """Iterations from one checkpoint to the next. What a killed run has learnt since its last one
    is learnt again from the stored batches, with the same numbers."""
    profile_iteration: NonNegativeInt | None = None
    """Iteration, from 0, whose steps that compute are recorded by torch's profiler, of the first
    rank: a Chrome trace each in `profiles` of the run's folder. null: none."""
    gpu_hour_price: NonNegativeFloat | None = None
    """What an hour of one GPU costs, in any currency, for a run's cost in MLflow, summary and
    report; null leaves it at GPU-hours."""
    trackers: list[Literal["tensorboard", "wandb"]] = Field(default=[])
    """Trackers that are told every metric beside MLflow, which has the models and the files too.
    `tensorboard`: event files in `tensorboard` of the run's folder; `wandb`: a W&B run in the
    project `trainer.project_name` (`WANDB_API_KEY`, `WANDB_MODE` and so on are W&B's own)."""
    mlflow_tracking_uri: Annotated[str, no_credentials(_MLFLOW)] | None = None
    """null: an SQLite file in `output_dir`; otherwise any MLflow server. Its user and password come
    from the environment (`MLFLOW_TRACKING_USERNAME`, `MLFLOW_TRACKING_PASSWORD`) and never from
    here."""
    mlflow_parent_run: str | None = None
    """Id of the MLflow run that the run is a child of; `vagen sweep` sets it."""
    kubernetes: KubernetesConfig | None = None
    """null: this machine; otherwise the cluster that `vagen submit` sends the pipeline to."""

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
