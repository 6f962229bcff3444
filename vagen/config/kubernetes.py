"""Where a pipeline's steps and its Ray cluster are placed on Kubernetes."""

import re
from typing import Annotated, Literal, NamedTuple, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from vagen.config.base import Section

_QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")
_TAINT = re.compile(
    r"(?P<key>[A-Za-z0-9._/-]+)(=(?P<value>[A-Za-z0-9._-]*))?"
    r":(?P<effect>NoSchedule|PreferNoSchedule|NoExecute)"
)
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class Toleration(NamedTuple):
    """A toleration, as Kubernetes names its parts."""

    key: str
    operator: Literal["Equal", "Exists"]
    value: str | None
    effect: Effect


def read_toleration(text: str) -> Toleration:
    """`key=value:effect` or `key:effect` (any value), as `kubectl taint` writes taints.

    Raises:
        ValueError: It is neither.
    """
    found = _TAINT.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text!r} is no toleration; write key=value:effect or key:effect, with the effect "
            "NoSchedule, PreferNoSchedule or NoExecute"
        )
    value = found["value"]
    operator = "Exists" if value is None else "Equal"
    return Toleration(found["key"], operator, value, cast(Effect, found["effect"]))


def _quantity(value: object) -> str:
    text = str(value)
    if not _QUANTITY.fullmatch(text):
        raise ValueError("write a quantity of Kubernetes, such as 500m, 2, 512Mi or 8Gi")
    return text


def _toleration(text: str) -> str:
    read_toleration(text)
    return text


def _object_name(text: str) -> str:
    if len(text) > 63 or not _LABEL.fullmatch(text):
        raise ValueError("use up to 63 lower-case letters, digits and `-`, as Kubernetes does")
    return text


def _label_value(text: str) -> str:
    if len(text) > 63 or not _LABEL_VALUE.fullmatch(text):
        raise ValueError("use up to 63 letters, digits, `-`, `_` and `.`, as labels do")
    return text


Quantity = Annotated[str, BeforeValidator(_quantity)]
ObjectName = Annotated[str, AfterValidator(_object_name)]
LabelValue = Annotated[str, AfterValidator(_label_value)]


class ResourcesConfig(Section):
    """Resources that a step's pod requests.

    The memory limit equals the request; the CPU limit is at least one core.
    """

    cpu: Quantity = "1"
    """Cores."""
    memory: Quantity = "2Gi"
    """Memory, including `/dev/shm`."""
    gpus: NonNegativeInt = 0
    """GPUs."""
    shm: Quantity | None = None
    """Size of `/dev/shm`; null: the container runtime's 64 MiB."""


class DeployConfig(Section):
    """How the pipeline's last step deploys the agent (docs/serving.md)."""

    count: PositiveInt | None = None
    """Levels per environment that the deployed agent plays; null: all."""
    share: Annotated[int, Field(ge=1, le=100)] = 100
    """Percent of the requests that a new version gets; less than 100 needs KServe."""
    plain: bool = False
    """Use a Deployment even where KServe is installed."""
    model_registry: str | None = None
    """Address of Kubeflow's Model Registry, which gets deployed versions; null: none."""


class KubernetesConfig(Section):
    """Where the pipeline's steps and the run's Ray cluster are placed.

    docs/kubernetes.md describes the platform.
    """

    namespace: ObjectName = "vagen"
    """Namespace of Ray clusters; steps run where Kubeflow Pipelines puts them."""
    image: str | None = None
    """Container image of the steps; null takes the image given at compilation."""
    ray_image: str | None = None
    """Container image of the Ray cluster; null takes the template's."""
    template: ObjectName = "vagen-raycluster"
    """Config map with the platform's RayCluster (key `raycluster.yaml`)."""
    deploy: DeployConfig | None = None
    """Deploy the registered agent (`deploy: {}`); null: do not."""
    gpu_resource: str = "nvidia.com/gpu"
    """Resource of a GPU, such as `amd.com/gpu` or `nvidia.com/mig-3g.40gb`."""
    gpu_claim: ObjectName | None = None
    """ResourceClaimTemplate of one GPU, such as `vagen-gpu` of component `gpu-claim`; Ray workers
    claim it per GPU. Null: they request `gpu_resource`."""
    models: ObjectName | None = None
    """PersistentVolumeClaim that keeps Hugging Face's downloads (`HF_HOME`) for all pods of all
    runs; null: each pod downloads."""
    queue: ObjectName | None = None
    """Kueue local queue that admits the Ray cluster; null uses none."""
    service_account: ObjectName | None = "vagen-step"
    """Service account of the steps, which may create Ray clusters (`KFP_SERVICE_ACCOUNT` of the
    site file); null: Kubeflow's runner, which may not."""
    team: LabelValue | None = None
    """Label `vagen.dev/team` of the steps, the Ray cluster and its pods, for cost reports."""
    cost_center: LabelValue | None = None
    """Label `vagen.dev/cost-center` of the same objects."""
    sweep: LabelValue | None = None
    """Label `vagen.dev/sweep` of the same objects; `vagen sweep` sets it."""
    priority: ObjectName | None = None
    """Priority class of the Ray pods, such as `vagen-run` or `vagen-trial`; null: the cluster's
    default."""
    config_maps: dict[str, tuple[str, ...]] = Field(
        default={"vagen-site": ("AWS_ENDPOINT_URL_S3", "AWS_REGION", "MLFLOW_TRACKING_URI")}
    )
    """Config maps and the keys that steps receive as environment variables."""
    secrets: dict[str, tuple[str, ...]] = Field(
        default={"vagen-s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    )
    """Secrets and the keys that steps receive as environment variables."""
    pull_secrets: tuple[ObjectName, ...] = ()
    """Secrets for pulling the steps' image."""
    ask: ResourcesConfig = ResourcesConfig()
    """Resources of steps that delegate to the Ray cluster and wait (`engine: verl`)."""
    work: ResourcesConfig = ResourcesConfig(cpu="4", memory="16Gi", shm="2Gi")
    """Resources of steps that compute: `build` and `register`, and all steps with `engine:
    local`."""
    steps: dict[str, ResourcesConfig] = Field(default_factory=dict)
    """Resources by step name, instead of `ask` and `work`."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Node labels for steps; the template sets those of the Ray cluster."""
    tolerations: tuple[Annotated[str, AfterValidator(_toleration)], ...] = ()
    """Taints that steps tolerate, as in `kubectl taint`: `key=value:effect`."""
    user: PositiveInt = 1000
    """User and group id of the steps."""
    retries: NonNegativeInt = 2
    """Retries of a stage that lost its node, head or actor; it continues from committed folders."""
    step_hours: PositiveFloat = 24.0
    """Time limit of a step, in hours."""
    deadline_hours: PositiveFloat | None = None
    """Time limit of a pipeline run, in hours; null: none."""
    keep_hours: PositiveFloat | None = None
    """Hours that Kubernetes keeps the finished Workflow object; null takes Kubeflow's setting.
    Kubeflow's database keeps the run."""
    pending_minutes: PositiveFloat = 60.0
    """Longest wait of the Ray cluster for nodes, queue or quota, in minutes."""
    lease_minutes: PositiveFloat = 60.0
    """Length of the Ray cluster's lease, which working steps renew; `make gc` removes a cluster
    with an expired lease."""

    @property
    def cost_labels(self) -> dict[str, str]:
        """The configured labels for assigning costs."""
        given = {
            "vagen.dev/team": self.team,
            "vagen.dev/cost-center": self.cost_center,
            "vagen.dev/sweep": self.sweep,
        }
        return {label: value for label, value in given.items() if value}
