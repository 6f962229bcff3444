"""What is deployed: the registered version of a run, rendered into the platform's template."""

import json
from dataclasses import dataclass

import yaml

from vagen.cluster.errors import ClusterError
from vagen.cluster.kube import CONFIG_MAPS, Kube, Object
from vagen.cluster.names import RUN, label_value, shortened
from vagen.config.base import ConfigError
from vagen.run import layout
from vagen.run.folder import committed
from vagen.run.run import Run

TEMPLATE = "vagen-agent"
"""ConfigMap with the platform's templates."""
DEPLOYMENT, KSERVE = "deployment.yaml", "inferenceservice.yaml"
"""Its keys."""
AGENT, VERSION = "vagen.dev/agent", "vagen.dev/agent-version"
"""Labels of an agent's objects and pods."""
NAME_LIMIT = 40
"""Characters of a name: Knative adds up to 20 to that of an InferenceService, of 63."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A registered version of a run.

    Example: `Agent("frozenlake-tiny", "3", "s3://vagen/runs/lake-1",
    "s3://vagen/runs/lake-1/checkpoints/0029")`.
    """

    model: str
    """Name of the registered model."""
    version: str
    run: str
    """URI of the run."""
    checkpoint: str
    """URI of the checkpoint; its folder `policy` is the model."""

    @property
    def model_uri(self) -> str:
        """MLflow's URI of the version."""
        return f"models:/{self.model}/{self.version}"

    @property
    def name(self) -> str:
        """Name of the service, and of the model in requests."""
        return agent_name(self.model)

    @property
    def selector(self) -> dict[str, str]:
        """Labels that the pods of the version have, and no others."""
        return {AGENT: self.name, VERSION: self.version}

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the version's objects."""
        return {
            "app.kubernetes.io/name": "agent",
            "app.kubernetes.io/part-of": "vagen",
            **self.selector,
            RUN: label_value(layout.run_name(self.run)),
        }


def agent_name(model: str) -> str:
    """Name of an agent's service.

    >>> agent_name("frozenlake-tiny")
    'agent-frozenlake-tiny'
    """
    return shortened(f"agent-{model}", NAME_LIMIT)


def agent_of(run: Run) -> Agent:
    """The agent of a registered run.

    Raises:
        ConfigError: The run is not registered, or only on this machine.
    """
    if run.mirror is None:
        raise ConfigError(
            f"run {run.name} is on this machine only: a pod reads it from a store. Copy it with "
            "`vagen store put`, or train with infra.store=s3://..."
        )
    if committed(run.fetch(run.registration)) is None:
        raise ConfigError(f"run {run.name} has no registered model: its step `register` is to come")
    content = json.loads((run.registration / "registration.json").read_text())
    _, model, version = content["model_uri"].rsplit("/", 2)
    uri = run.mirror.uri
    checkpoint = run.checkpoint(run.final_iteration).relative_to(run.path)
    return Agent(model, version, uri, f"{uri}/{checkpoint.as_posix()}")


def read_template(kube: Kube, key: str) -> str | None:
    """A template of the platform; None if it has none of this kind.

    Raises:
        ClusterError: There are no templates.
    """
    found = kube.get(CONFIG_MAPS, TEMPLATE)
    if found is None:
        raise ClusterError(
            f"there is no ConfigMap {TEMPLATE} in namespace {kube.namespace}: add the component "
            "`agents` to the overlay, then `make deploy`"
        )
    return found.get("data", {}).get(key)


def render(template: str, key: str, agent: Agent) -> Object:
    """An object of an agent: the template with the names of the version.

    In the text, AGENT_NAME is the agent's name, AGENT_RUN the run's URI, and AGENT_CHECKPOINT that
    of its checkpoint.

    Raises:
        ClusterError: The template is not an object of its kind.
    """
    names = {
        "AGENT_NAME": agent.name,
        "AGENT_RUN": agent.run,
        "AGENT_CHECKPOINT": agent.checkpoint,
    }
    for mark, value in names.items():
        template = template.replace(mark, value)
    try:
        body = yaml.safe_load(template)
    except yaml.YAMLError as error:
        raise ClusterError(f"{key} of ConfigMap {TEMPLATE} is no YAML: {error}") from error
    kind = {DEPLOYMENT: "Deployment", KSERVE: "InferenceService"}[key]
    if not isinstance(body, dict) or body.get("kind") != kind:
        raise ClusterError(f"{key} of ConfigMap {TEMPLATE} is no {kind}")
    metadata = body.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **agent.labels}
    return body
