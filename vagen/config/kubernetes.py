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
    """What a step's pod requests. Its limit of memory is the same; of cores, one at least."""

    cpu: Quantity = "1"
    """Cores."""
    memory: Quantity = "2Gi"
    """Memory, `/dev/shm` included."""
    gpus: NonNegativeInt = 0
    """GPUs."""
    shm: Quantity | None = None
    """Size of `/dev/shm`; null leaves the container runtime's 64 MiB."""


class KubernetesConfig(Section):
    """A Kubernetes cluster: where the pipeline's steps and the run's Ray cluster are placed.

    Deploying the platform is described in docs/kubernetes.md.
    """

    namespace: ObjectName = "vagen"
    """Namespace of Ray clusters; steps run where Kubeflow Pipelines puts them."""
    image: str | None = None
    """Container image of the steps; null takes the one given when the pipeline is compiled."""
    ray_image: str | None = None
    """Container image of the Ray cluster; null takes the template's."""
    template: ObjectName = "vagen-raycluster"
    """Config map that holds the platform's RayCluster (key `raycluster.yaml`)."""
    queue: ObjectName | None = None
    """Kueue's local queue that admits the Ray cluster as a whole; null asks for none."""
    service_account: ObjectName | None = "vagen-step"
    """Service account of the steps, which create Ray clusters: `KFP_SERVICE_ACCOUNT` of the site's
    file; null takes Kubeflow's own runner, which may not."""
    team: LabelValue | None = None
    """Who pays: label `vagen.dev/team` of the steps, the Ray cluster and its pods."""
    cost_center: LabelValue | None = None
    """Label `vagen.dev/cost-center` of the same."""
    sweep: LabelValue | None = None
    """Label `vagen.dev/sweep` of the same; `vagen sweep` sets it."""
    priority: ObjectName | None = None
    """Priority class of the Ray pods: `vagen-run`, `vagen-trial` or one of your own; null: the
    cluster's default."""
    config_maps: dict[str, tuple[str, ...]] = Field(
        default={
            "vagen-site": (
                "AWS_ENDPOINT_URL_S3",
                "AWS_REGION",
                "MLFLOW_TRACKING_URI",
            )
        }
    )
    """Config maps, and which of their keys the steps get as environment variables."""
    secrets: dict[str, tuple[str, ...]] = Field(
        default={"vagen-s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    )
    """Secrets, and which of their keys the steps get as environment variables."""
    pull_secrets: tuple[ObjectName, ...] = ()
    """Secrets for pulling the steps' image."""
    ask: ResourcesConfig = ResourcesConfig()
    """Resources of steps that have their work done by the Ray cluster (`engine: verl`) and wait."""
    work: ResourcesConfig = ResourcesConfig(cpu="4", memory="16Gi", shm="2Gi")
    """Resources of steps that work themselves: `build` and `register`, and all of them with
    `engine: local`."""
    steps: dict[str, ResourcesConfig] = Field(default_factory=dict)
    """Resources by step, instead of those."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the nodes that steps may run on; the Ray cluster's are the template's."""
    tolerations: tuple[Annotated[str, AfterValidator(_toleration)], ...] = ()
    """Taints that steps tolerate, as `kubectl taint` writes them: `key=value:effect`."""
    user: PositiveInt = 1000
    """User and group id of the steps."""
    retries: NonNegativeInt = 2
    """How often a stage is tried again whose node, head or actor was lost; it goes on from what is
    committed."""
    step_hours: PositiveFloat = 24.0
    """A step that takes longer is stopped."""
    deadline_hours: PositiveFloat | None = None
    """A pipeline run that takes longer is ended as a whole; null: never."""
    keep_hours: PositiveFloat | None = None
    """How long Kubernetes keeps the pipeline's Workflow object after its end; null takes
    Kubeflow's own time. Kubeflow's database keeps the run."""
    pending_minutes: PositiveFloat = 60.0
    """How long the Ray cluster may wait for nodes, in a queue, or for room in the quota."""
    lease_minutes: PositiveFloat = 60.0
    """Steps renew the lease of the run's Ray cluster while they work; `make gc` removes a cluster
    whose lease is over."""

    @property
    def cost_labels(self) -> dict[str, str]:
        """The labels by which cost is told apart, those that are given."""
        given = {
            "vagen.dev/team": self.team,
            "vagen.dev/cost-center": self.cost_center,
            "vagen.dev/sweep": self.sweep,
        }
        return {label: value for label, value in given.items() if value}
